/** Codes of positions that are made of waves: each pair (sin ω t, cos ω t) turns by ω from one position to the next. */

import type { Numbers } from "../report";

/** How far each pair turns in a step, of logarithms as they came. */
export function ratesOf(logs: Numbers): Float64Array {
  return Float64Array.from(logs.values, (log) => 10 ** log);
}

/** M_k, whose product with P(t) is P(t + k), for the pairs given, a sine and its cosine side by side: (2n, 2n). */
export function rotation(rates: ArrayLike<number>, distance: number): Numbers {
  const size = 2 * rates.length;
  const values = new Float32Array(size * size);
  for (let i = 0; i < rates.length; i++) {
    const angle = rates[i]! * distance;
    const at = 2 * i * size + 2 * i;
    values[at] = values[at + size + 1] = Math.cos(angle);
    values[at + 1] = Math.sin(angle);
    values[at + size] = -Math.sin(angle);
  }
  return { shape: [size, size], values };
}

/** The largest |M_k P(t) − P(t + k)| of a table (T, D) of all sines, then all cosines. */
export function rotationError(table: Numbers, rates: ArrayLike<number>, distance: number): number {
  const [rows, columns] = table.shape as [number, number];
  const shift = columns - rates.length; // from a sine to its cosine
  let most = 0;
  for (let i = 0; i < rates.length; i++) {
    const [cos, sin] = [Math.cos(rates[i]! * distance), Math.sin(rates[i]! * distance)];
    for (let t = 0; t + distance < rows; t++) {
      const [from, to] = [t * columns + i, (t + distance) * columns + i];
      const [s, c] = [table.values[from]!, table.values[from + shift]!];
      most = Math.max(most, Math.abs(s * cos + c * sin - table.values[to]!), Math.abs(c * cos - s * sin - table.values[to + shift]!));
    }
  }
  return most;
}

/** Which column of a table of all sines, then all cosines, is drawn at a place where they take turns: sin, cos, sin, … */
export function inTurns(place: number, columns: number): number {
  const half = Math.floor(columns / 2);
  if (place >= 2 * half) return half; // one more sine, of a width that is odd
  return place % 2 ? columns - half + (place - 1) / 2 : place / 2;
}

/** cos(P(t), P(t + k)) = the mean of cos ω k, whatever t. */
export function likeness(rates: ArrayLike<number>, distance: number): number {
  let sum = 0;
  for (let i = 0; i < rates.length; i++) sum += Math.cos(rates[i]! * distance);
  return sum / Math.max(1, rates.length);
}

/** cos(P(s), P(t)) of all pairs of a table (T, D), whose rows are not 0: T × T. */
export function cosines(table: Numbers): Float32Array {
  const [rows, columns] = table.shape as [number, number];
  const made = new Float32Array(rows * rows);
  const at = (s: number, t: number): number => {
    let sum = 0;
    for (let i = 0; i < columns; i++) sum += table.values[s * columns + i]! * table.values[t * columns + i]!;
    return sum;
  };
  const lengths = Float32Array.from({ length: rows }, (_, s) => Math.sqrt(at(s, s)) || 1);
  for (let s = 0; s < rows; s++) for (let t = 0; t < rows; t++) made[s * rows + t] = at(s, t) / (lengths[s]! * lengths[t]!);
  return made;
}

/** Some of so many, evenly, with the first and the last. */
export function some(count: number, most: number): number[] {
  const taken = Math.min(count, most);
  return Array.from({ length: taken }, (_, i) => (taken === 1 ? 0 : Math.round((i * (count - 1)) / (taken - 1))));
}
