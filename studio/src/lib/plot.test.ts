import { expect, test } from "vitest";
import { apart, clipped, counted, linear, median, power, powers, quantile, scientific, whole } from "./plot";

test("powers of ten are written as people write them", () => {
  expect([power(0), power(1), power(-12)]).toEqual(["1", "10", "10⁻¹²"]);
  expect([scientific(-33.1), scientific(0), scientific(NaN), scientific(Math.log10(0.61))]).toEqual(["7.9·10⁻³⁴", "1.0", "0", "0.61"]);
});

test("ticks are round numbers, and the axis ends at them", () => {
  expect(linear(0.03, 0.92, 5)).toMatchObject({ low: 0, high: 1, ticks: [0, 0.2, 0.4, 0.6000000000000001, 0.8, 1] });
  expect(linear(0, 1).told(0.2)).toBe("0.2");
  expect(linear(0, 0.1).told(0.02)).toBe("0.02");
  expect(linear(0, 12).ticks.map(linear(0, 12).told)).toEqual(["0.0", "2.5", "5.0", "7.5", "10.0", "12.5"]);
  expect(linear(3, 3).high).toBeGreaterThan(3);
  expect(counted(102, 10).ticks.at(-1)).toBe(100);
  const axis = powers(-33.4, 0.3);
  expect([axis.low, axis.high]).toEqual([-34, 1]);
  expect(axis.ticks.length).toBeLessThan(10);
});

test("a line is cut where it leaves the box, and at what is no number", () => {
  const box = { x: 0, y: 0, width: 10, height: 10 };
  expect(clipped([[0, 5], [1, -5], [2, 5]], box)).toEqual([[[0, 5], [0.5, 0]], [[1.5, 0], [2, 5]]]);
  expect(clipped([[0, 5], [1, NaN], [2, 5], [3, 6]], box)).toEqual([[[0, 5]], [[2, 5], [3, 6]]]);
  expect(clipped([[0, 5], [1, 15]], box)).toEqual([[[0, 5], [0.5, 10]]]);
});

test("labels are moved apart and stay inside", () => {
  expect(apart([5, 5, 50], 10, 0, 100)).toEqual([5, 15, 50]);
  expect(apart([98, 99], 10, 0, 100)).toEqual([90, 100]);
});

test("three bytes are one number", () => {
  const bytes = { shape: [3, 2], values: Float32Array.from([0, 1, 2, 0, 3, 255]) };
  expect([...whole(bytes).values]).toEqual([2 * 256 + 3, 65536 + 255]);
});

test("the middle, and shares", () => {
  expect(median([3, 1, 2])).toBe(2);
  expect(median([4, 1, 2, 3])).toBe(2.5);
  expect(quantile([0, 10], 0.1)).toBeCloseTo(1);
});
