/** Axes of a chart: ticks that people would choose, and places on the picture. */

import type { Painter } from "./painter";
import type { Numbers } from "./report";

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Axis {
  low: number;
  high: number;
  ticks: number[];
  told: (value: number) => string;
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** 10 to a whole power: 10⁻³. */
export function power(exponent: number): string {
  if (exponent === 0) return "1";
  if (exponent === 1) return "10";
  return `10${exponent < 0 ? "⁻" : ""}${[...String(Math.abs(exponent))].map((digit) => SUPERSCRIPTS[Number(digit)]).join("")}`;
}

/** A positive number of which the logarithm is known, as large or small as it may be: 3.2·10⁻¹⁸. */
export function scientific(log: number): string {
  if (!Number.isFinite(log)) return "0";
  if (log >= -2 && log < 4) return (10 ** log).toPrecision(2).replace(/e\+?(\d+)$/, (_, n: string) => `·${power(Number(n))}`);
  const exponent = Math.floor(log);
  return `${(10 ** (log - exponent)).toFixed(1)}·${power(exponent)}`;
}

function step(span: number, count: number): number {
  const raw = span / Math.max(1, count);
  const size = 10 ** Math.floor(Math.log10(raw));
  return size * ([1, 2, 2.5, 5, 10].find((each) => each * size >= raw * (1 - 1e-9)) ?? 10);
}

/** Ticks at round numbers; with `ends` the axis ends at them. */
export function linear(low: number, high: number, count = 5, ends = true, told?: (value: number) => string): Axis {
  if (!(high > low)) high = low + 1;
  const each = step(high - low, count);
  const [first, last] = ends ? [Math.floor(low / each + 1e-9), Math.ceil(high / each - 1e-9)] : [Math.ceil(low / each - 1e-9), Math.floor(high / each + 1e-9)];
  const ticks = Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * each);
  const digits = Math.max(0, -Math.floor(Math.log10(each) + 1e-9));
  const precise = Math.abs(each * 10 ** digits - Math.round(each * 10 ** digits)) > 1e-6 ? digits + 1 : digits;
  return { low: ends ? first * each : low, high: ends ? last * each : high, ticks, told: told ?? ((value) => value.toFixed(precise).replace("-", "−")) };
}

/** Whole numbers from 0 to the last, of which some are written. */
export function counted(last: number, count: number): Axis {
  const each = Math.max(1, Math.round(step(Math.max(1, last), count)));
  const ticks = Array.from({ length: Math.floor(last / each) + 1 }, (_, i) => i * each);
  return { low: 0, high: Math.max(1, last), ticks, told: String };
}

/** An axis of logarithms: whole powers of ten. */
export function powers(low: number, high: number, count = 8): Axis {
  let [first, last] = [Math.floor(low + 1e-9), Math.ceil(high - 1e-9)];
  if (last <= first) last = first + 1;
  const each = Math.max(1, Math.ceil((last - first) / count));
  const ticks = [];
  for (let at = Math.ceil(first / each) * each; at <= last; at += each) ticks.push(at);
  return { low: first, high: last, ticks, told: power };
}

export function across(axis: Axis, box: Box): (value: number) => number {
  return (value) => box.x + ((value - axis.low) / (axis.high - axis.low)) * box.width;
}

export function up(axis: Axis, box: Box): (value: number) => number {
  return (value) => box.y + box.height - ((value - axis.low) / (axis.high - axis.low)) * box.height;
}

/** Light lines at the ticks, numbers at the left and below, and what they are: of y above the box, of x under it. */
export function axes(painter: Painter, box: Box, x: Axis, y: Axis, named: { x: string; y: string }): void {
  const [toX, toY] = [across(x, box), up(y, box)];
  const quiet = { size: 11, color: painter.theme.quiet } as const;
  for (const tick of y.ticks) {
    painter.line([[box.x, toY(tick)], [box.x + box.width, toY(tick)]], painter.theme.rule, 0.75);
    painter.text(y.told(tick), box.x - 7, toY(tick), { ...quiet, align: "right" });
  }
  painter.line([[box.x, box.y + box.height], [box.x + box.width, box.y + box.height]], painter.theme.quiet, 1);
  for (const tick of x.ticks) {
    painter.line([[toX(tick), box.y + box.height], [toX(tick), box.y + box.height + 4]], painter.theme.quiet, 1);
    painter.text(x.told(tick), toX(tick), box.y + box.height + 13, { ...quiet, align: "center" });
  }
  painter.text(named.x, box.x + box.width, box.y + box.height + 29, { ...quiet, align: "right" });
  painter.text(named.y, 0, box.y - 15, quiet);
}

/** The parts of a line that lie inside of a box from top to bottom: it is cut where it leaves. */
export function clipped(points: readonly (readonly [number, number])[], box: Box): [number, number][][] {
  const [top, bottom] = [box.y, box.y + box.height];
  const inside = (y: number): boolean => y >= top - 1e-6 && y <= bottom + 1e-6;
  const parts: [number, number][][] = [];
  let part: [number, number][] = [];
  points.forEach(([x, y], i) => {
    const before = points[i - 1];
    if (!Number.isFinite(y)) return void (part = []);
    if (before && Number.isFinite(before[1]) && inside(before[1]) !== inside(y)) {
      const edge = (y < top || before[1] < top) ? top : bottom;
      const at: [number, number] = [before[0] + ((x - before[0]) * (edge - before[1])) / (y - before[1]), edge];
      if (inside(y)) part = [at];
      else part.push(at);
    }
    if (inside(y)) {
      part.push([x, y]);
      if (part.length === 1 || !parts.includes(part)) parts.push(part);
    } else part = [];
  });
  return parts;
}

/** Labels that would lie on one another, moved apart: the places of each, in the order given. */
export function apart(wanted: readonly number[], gap: number, low: number, high: number): number[] {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a]! - wanted[b]!);
  const found = [...wanted];
  let last = -Infinity;
  for (const i of order) last = found[i] = Math.max(found[i]!, last + gap, low);
  let next = Infinity;
  for (const i of order.reverse()) next = found[i] = Math.min(found[i]!, next - gap, high);
  return found;
}

/** Whole numbers that came as three bytes each, (3, …): the highest first. */
export function whole(bytes: Numbers): Numbers {
  const shape = bytes.shape.slice(1);
  const count = shape.reduce((product, each) => product * each, 1);
  const at = (i: number): number => Math.round(bytes.values[i]!);
  return { shape, values: Float32Array.from({ length: count }, (_, i) => at(i) * 65536 + at(count + i) * 256 + at(2 * count + i)) };
}

export function median(values: ArrayLike<number>): number {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** The value below which so large a share of the values lies. */
export function quantile(values: ArrayLike<number>, share: number): number {
  const sorted = Float64Array.from(values).sort();
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted[low]! + (sorted[Math.min(low + 1, sorted.length - 1)]! - sorted[low]!) * (place - low);
}
