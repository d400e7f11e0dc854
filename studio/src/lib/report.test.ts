import { expect, test } from "vitest";
import { decode, half, mean, part } from "./report";

test("bytes between two ends, spread by their roots", () => {
  const entry = { dtype: "u8" as const, shape: [3], low: 0, high: 2, power: 2 };
  const found = decode(entry, Uint8Array.from([0, 51, 255])).values;
  expect(found[0]).toBe(0);
  expect(found[1]).toBeCloseTo(2 * 0.04);
  expect(found[2]).toBe(2);
  expect(() => decode(entry, new Uint8Array(2))).toThrow("3 are wanted");
});

test("halves", () => {
  expect(half(0x3c00)).toBe(1);
  expect(half(0xc000)).toBe(-2);
  expect(half(0x0001)).toBeCloseTo(2 ** -24, 30);
  expect(half(0x7c00)).toBe(Infinity);
  expect(half(0x7e00)).toBeNaN(); // where there is no number
});

test("a part, and the mean of parts", () => {
  const all = { shape: [2, 1, 2], values: Float32Array.from([1, 2, 3, 4]) };
  expect(Array.from(part(all, 1).values)).toEqual([3, 4]);
  expect(part(all, 1, 0).shape).toEqual([2]);
  expect(Array.from(mean(all).values)).toEqual([2, 3]);
});
