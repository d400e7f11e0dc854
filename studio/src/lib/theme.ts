/** Colours that readers who see no red or no green tell apart too (Okabe and Ito), on light and on dark. */

export interface Theme {
  dark: boolean;
  paper: string;
  raised: string;
  ink: string;
  quiet: string;
  rule: string;
  accent: string;
  series: readonly string[];
}

const LIGHT_SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#555555"];
const DARK_SERIES = ["#56b4e9", "#e69f00", "#2bc79a", "#e39ac4", "#f0e442", "#7fa8ff", "#bbbbbb"];

export const LIGHT: Theme = {
  dark: false,
  paper: "#fbfaf7",
  raised: "#ffffff",
  ink: "#1d2129",
  quiet: "#6a6f7a",
  rule: "#dcdad3",
  accent: "#0072b2",
  series: LIGHT_SERIES,
};

export const DARK: Theme = {
  dark: true,
  paper: "#14171c",
  raised: "#1c2027",
  ink: "#e9e7e1",
  quiet: "#9aa0ab",
  rule: "#333943",
  accent: "#56b4e9",
  series: DARK_SERIES,
};

type Stop = readonly [number, number, number];

function between(stops: readonly Stop[], share: number): number {
  const place = Math.min(Math.max(Number.isFinite(share) ? share : 0, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [a, b, t] = [stops[low]!, stops[low + 1]!, place - low];
  const mixed = a.map((value, i) => Math.round(value + (b[i]! - value) * t));
  return (mixed[0]! << 16) | (mixed[1]! << 8) | mixed[2]!;
}

// From paper to ink through blue: lightness falls (or rises, on dark) evenly, so it reads in grey too.
const UP_LIGHT: Stop[] = [[251, 250, 247], [208, 225, 239], [132, 180, 214], [46, 126, 183], [0, 78, 134], [6, 36, 74]];
const UP_DARK: Stop[] = [[20, 23, 28], [18, 52, 82], [20, 92, 143], [52, 143, 197], [134, 197, 232], [238, 247, 255]];
const LOW_LIGHT: Stop[] = [[140, 62, 0], [213, 94, 0], [242, 178, 122], [251, 250, 247], [141, 190, 222], [0, 114, 178], [0, 58, 104]];
const LOW_DARK: Stop[] = [[255, 190, 110], [230, 130, 30], [120, 66, 20], [20, 23, 28], [20, 82, 128], [60, 155, 215], [170, 220, 250]];

/** Of 0 to 1: an amount. */
export function amount(theme: Theme, share: number): number {
  return between(theme.dark ? UP_DARK : UP_LIGHT, share);
}

/** One of many lines in their order, from 0 to 1: a colour that stands out from the paper. */
export function shade(theme: Theme, share: number): string {
  return `#${amount(theme, 0.35 + 0.6 * share).toString(16).padStart(6, "0")}`;
}

/** Of −1 to 1: below and above 0, orange and blue. */
export function signed(theme: Theme, value: number): number {
  return between(theme.dark ? LOW_DARK : LOW_LIGHT, (value + 1) / 2);
}

/** What can be read on a colour. */
export function inkOn(color: number): string {
  const light = 0.299 * (color >> 16) + 0.587 * ((color >> 8) & 255) + 0.114 * (color & 255);
  return light > 140 ? "#15181d" : "#f7f5f0";
}
