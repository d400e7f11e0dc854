import { expect, test } from "vitest";
import { dot, LECTURE, numbers, scoresOf, softmax } from "./softmax";

test("the lecture's scores, divided by 8", () => {
  const weights = softmax([112, 96, 16, 8].map((score) => score / 8));
  expect(weights.map((weight) => Number(weight.toFixed(2)))).toEqual([0.88, 0.12, 0, 0]);
  expect(weights.reduce((sum, weight) => sum + weight, 0)).toBeCloseTo(1);
});

test("large scores and what may not be seen", () => {
  expect(softmax([1e4, 1e4, -Infinity])).toEqual([0.5, 0.5, 0]);
  expect(softmax([-Infinity])).toEqual([0]);
});

test("lines that people write", () => {
  expect(numbers("112, 96;16 8")).toEqual([112, 96, 16, 8]);
  expect(numbers("1, x")).toBeNull();
  expect(numbers("")).toBeNull();
});

test("a report without heads begins with the lecture's scores", () => {
  expect(scoresOf(undefined, false)).toBe(LECTURE);
  expect(scoresOf(undefined, true)).toBeNull();
  expect(scoresOf("1, 2", true)).toBe("1, 2");
});

test("a dot product", () => expect(dot([1, 2], [3, 4])).toBe(11));
