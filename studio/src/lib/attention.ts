/** The layers of attention that a report holds. */

import type { ArrayRef, Numbers, Report } from "./report";
import { special } from "./tokens";

export interface Layer {
  name: string;
  stream: string;
  keys: string; // the stream that is looked at
  heads: number;
  weights: ArrayRef; // (H, T, S)
  thumbs: ArrayRef; // (H, ≤ 24, ≤ 24)
}

export interface Measured {
  name: string;
  head: number;
  entropy: number;
  distance: number | null;
  previous: number | null;
  first: number | null;
  itself: number | null;
  induction: number | null;
}

export interface Attention {
  layers: Layer[];
  measures: Measured[];
}

/** What is drawn of weights of queries (rows) on keys (columns), as a matrix or as lines. */
export interface Drawn {
  name: string; // of the file that is saved
  label: string;
  weights: Numbers; // (T, S)
  rows: readonly string[];
  columns: readonly string[];
  row?: number | null; // those chosen
  column?: number | null;
  onchoose?: (row: number | null, column: number | null) => void;
  rowNumbers?: readonly number[]; // those shown, where some are left out
  columnNumbers?: readonly number[];
}

export function names(report: Report, stream: string): string[] {
  return report.streams[stream]?.names ?? [];
}

/** The numbers of the positions that are shown. */
export function kept(all: readonly string[], withSpecial: boolean): number[] {
  const found = all.map((_, i) => i);
  const some = found.filter((i) => withSpecial || !special(all[i]!));
  return some.length ? some : found;
}
