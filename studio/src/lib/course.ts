/** The course of a run: rows of metrics.jsonl as lines. */

import type { Axis } from "./plot";

/** A step, a kind (train, valid, layers, samples) and figures, as they are in the file. */
export interface Row {
  step: number;
  kind: string;
  texts?: string[];
  [figure: string]: number | string | string[] | null | undefined;
}

export interface RunView {
  folder: string;
  task: string | null;
  model: string | null;
  steps: number | null; // that it was meant to make; null: not known
  every?: number; // of the rows of training, each so-many-th is here
  rows?: Row[]; // left out: a server has them
}

/** One of several runs that are compared. */
export interface ComparedRun extends RunView {
  name: string;
  entry: number; // what it is a run of: those that differ in their seeds alone are of one
  tokens_per_step: number;
  rows: Row[];
}

export interface RunsView {
  runs: ComparedRun[];
  table: { columns: string[]; rows: string[][]; caption: string }; // a row an entry
}

const TITLES: Record<string, string> = {
  loss: "Loss", lr: "Learning rate", norm: "Gradient norm", tokens_per_second: "Tokens a second", perplexity: "Perplexity",
  gradient: "Gradient norm of each layer", update: "Update / weights of each layer",
};

/** What a figure is called above its chart. */
export function titleOf(figure: string): string {
  return TITLES[figure] ?? figure.replace(/_/g, " ");
}

export const MEANS = [1, 3, 5, 11, 21, 51, 101, 201]; // rows that a smoothed line is the mean of
export const STEADY = new Set(["lr"]); // what has no noise to smooth

export interface Point {
  step: number;
  value: number;
}

const OTHERS = new Set(["step", "tokens"]); // numbers that count, and are no figures

/** The figures of a kind of rows, in the order in which they come. */
export function figures(rows: readonly Row[], kind: string): string[] {
  const found = new Set<string>();
  for (const row of rows)
    if (row.kind === kind) for (const [name, value] of Object.entries(row)) if (typeof value === "number" && !OTHERS.has(name)) found.add(name);
  return [...found];
}

/** One figure over the steps, as it is in the file; rows without it, or where it is not finite, are left out. */
export function line(rows: readonly Row[], kind: string, figure: string): Point[] {
  const found: Point[] = [];
  for (const row of rows) {
    const value = row[figure];
    if (row.kind === kind && typeof value === "number") found.push({ step: row.step, value });
  }
  return found;
}

/** A measure of each layer over the steps (rows of the kind `layers`, figures such as gradient/stack.layers.0). */
export interface LayerLines {
  measure: string;
  layers: { name: string; points: Point[] }[];
}

/** Every measure has all layers, in one order: those that it is not taken of have no points. */
export function byLayer(rows: readonly Row[]): LayerLines[] {
  const named = figures(rows, "layers").map((figure) => [figure.split("/", 1)[0]!, figure.slice(figure.indexOf("/") + 1)] as const);
  const [measures, layers] = [new Set(named.map(([measure]) => measure)), new Set(named.map(([, layer]) => layer))];
  return [...measures].map((measure) => ({
    measure,
    layers: [...layers].map((name) => ({ name, points: line(rows, "layers", `${measure}/${name}`) })),
  }));
}

/** The same over what was read: tokens in place of steps. */
export function overTokens(points: readonly Point[], tokensPerStep: number): Point[] {
  return points.map(({ step, value }) => ({ step: Math.round(step * tokensPerStep), value }));
}

/** Means of so many rows, each in the middle of its own; of fewer at the ends, where the line is not to lag behind. */
export function smoothed(points: readonly Point[], rows: number): Point[] {
  const sums = new Float64Array(points.length + 1);
  points.forEach(({ value }, i) => (sums[i + 1] = sums[i]! + value));
  return points.map(({ step, value }, i) => {
    const side = Math.min((rows - 1) >> 1, i, points.length - 1 - i);
    return { step, value: side ? (sums[i + side + 1]! - sums[i - side]!) / (2 * side + 1) : value };
  });
}

/** The point whose step is nearest. */
export function nearest(points: readonly Point[], step: number): Point | null {
  let [low, high] = [0, points.length - 1];
  if (high < 0) return null;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle]!.step < step) low = middle + 1;
    else high = middle;
  }
  const [here, before] = [points[low]!, points[low - 1]];
  return before && step - before.step <= here.step - step ? before : here;
}

/** Of more points than a picture has columns: the lowest and the highest in each, in their order. */
export function thinned(points: readonly Point[], columns: number): Point[] {
  if (points.length <= 4 * columns) return [...points];
  const [first, last] = [points[0]!.step, points[points.length - 1]!.step];
  const found: Point[] = [];
  let [column, low, high] = [-1, points[0]!, points[0]!];
  const put = (): void => {
    found.push(...(low.step < high.step ? [low, high] : low.step > high.step ? [high, low] : [low]));
  };
  for (const point of points) {
    const at = Math.floor(((point.step - first) / Math.max(1, last - first)) * columns);
    if (at !== column) {
      if (column >= 0) put();
      [column, low, high] = [at, point, point];
    } else {
      if (point.value < low.value) low = point;
      if (point.value >= high.value) high = point;
    }
  }
  put();
  return found;
}

/** A number as an axis has it: 0.002, 1.5M. */
export function told(value: number): string {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]] as const)
    if (size >= unit) return `${Number((value / (letter === "k" ? 1e3 : unit)).toPrecision(4))}${letter}`;
  return size !== 0 && size < 1e-4 ? value.toExponential().replace(/(\.\d{2})\d+/, "$1") : String(Number(value.toPrecision(6)));
}

/** An axis of decimal logarithms, with ticks at round numbers: 1, 2, 5, 10 where few powers of ten are between its ends. */
export function logarithms(low: number, high: number): Axis {
  if (!(high > low)) [low, high] = [low - 0.15, low + 0.15];
  const span = high - low;
  const steps = span > 5 ? [1] : span > 2.5 ? [1, 3] : span > 1.2 ? [1, 2, 5] : span > 0.5 ? [1, 1.5, 2, 3, 5, 7] : [1, 1.2, 1.5, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
  const ticks: number[] = [];
  const each = Math.max(1, Math.ceil(span / 8));
  for (let power = Math.floor(low) - 1; power <= Math.ceil(high); power++)
    for (const step of steps) {
      const tick = power + Math.log10(step);
      if (tick >= low - 1e-9 && tick <= high + 1e-9 && (steps.length > 1 || power % each === 0)) ticks.push(tick);
    }
  return { low, high, ticks, told: (value) => told(Number((10 ** value).toPrecision(3))) };
}
