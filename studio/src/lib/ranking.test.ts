import { expect, test } from "vitest";
import { correlations, matches, spreads } from "./ranking";

const units = { shape: [4, 2], values: Float32Array.from([0, 1, 1, 1, 0, 1, 1, 1]) };

test("a unit that follows, and one that never changes", () => {
  expect(Array.from(correlations(units, [0, 1, 0, 1]))).toEqual([1, 0]);
  expect(correlations(units, [1, 0, 1, 0])[0]).toBeCloseTo(-1);
  expect(Array.from(spreads(units))).toEqual([0.5, 0]);
});

test("tokens that end inside of a match", () => {
  expect(Array.from(matches(["a", "12", "b", "3c"], /\d+/u))).toEqual([0, 1, 0, 0]);
});
