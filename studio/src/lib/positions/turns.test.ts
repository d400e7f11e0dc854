import { expect, test } from "vitest";
import { cosines, inTurns, likeness, rotation, rotationError, some } from "./turns";

const RATES = [1, 0.1, 0.01];
const LENGTH = 40;
const table = {
  shape: [LENGTH, 6],
  values: Float32Array.from({ length: LENGTH * 6 }, (_, i) => {
    const [t, column] = [Math.floor(i / 6), i % 6];
    return column < 3 ? Math.sin(RATES[column]! * t) : Math.cos(RATES[column - 3]! * t);
  }),
};

test("one matrix takes every position as far", () => {
  for (const distance of [0, 1, 17]) {
    expect(rotationError(table, RATES, distance)).toBeLessThan(1e-6);
    const turn = rotation(RATES, distance);
    for (const t of [0, 9, 22]) {
      const pair = (at: number): number[] => RATES.flatMap((rate) => [Math.sin(rate * at), Math.cos(rate * at)]);
      const moved = Array.from({ length: 6 }, (_, r) => pair(t).reduce((sum, value, c) => sum + turn.values[r * 6 + c]! * value, 0));
      moved.forEach((value, i) => expect(value).toBeCloseTo(pair(t + distance)[i]!, 5));
    }
  }
  expect(rotationError(table, [1, 0.1, 0.02], 10)).toBeGreaterThan(0.01);
});

test("sines and cosines are drawn in turns, each column once", () => {
  expect(Array.from({ length: 6 }, (_, place) => inTurns(place, 6))).toEqual([0, 3, 1, 4, 2, 5]);
  expect(Array.from({ length: 5 }, (_, place) => inTurns(place, 5))).toEqual([0, 3, 1, 4, 2]);
});

test("likeness depends on the distance alone", () => {
  const row = (t: number): Float32Array => table.values.subarray(t * 6, (t + 1) * 6);
  for (const t of [0, 11]) expect(row(t).reduce((sum, value, i) => sum + value * row(t + 7)[i]!, 0) / 3).toBeCloseTo(likeness(RATES, 7), 5);
});

test("cosines of all pairs are those of their distances", () => {
  const found = cosines(table);
  for (const [s, t] of [[0, 0], [3, 10], [39, 2]] as const) expect(found[s * LENGTH + t]).toBeCloseTo(likeness(RATES, Math.abs(s - t)), 5);
  expect(Array.from(cosines({ shape: [2, 2], values: Float32Array.from([3, 0, 0, 2]) }))).toEqual([1, 0, 0, 1]);
});

test("some of many, with both ends", () => {
  expect(some(32, 4)).toEqual([0, 10, 21, 31]);
  expect(some(2, 4)).toEqual([0, 1]);
  expect(some(1, 4)).toEqual([0]);
});
