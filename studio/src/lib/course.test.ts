import { expect, test } from "vitest";
import { byLayer, figures, line, logarithms, nearest, overTokens, smoothed, thinned, titleOf, told, type Row } from "./course";

const ROWS: Row[] = [
  { step: 10, kind: "train", loss: 2.5, lr: 0.001, tokens: 640 },
  { step: 20, kind: "train", loss: null, lr: 0.002, tokens: 1280 },
  { step: 20, kind: "valid", loss: 2.25, bleu: 3.5 },
  { step: 20, kind: "samples", texts: ["a dog"] },
  { step: 30, kind: "train", loss: 1.7976931348623157, lr: 0.003, tokens: 1920 },
];

test("figures in their order, without what only counts", () => {
  expect(figures(ROWS, "train")).toEqual(["loss", "lr"]);
  expect(figures(ROWS, "valid")).toEqual(["loss", "bleu"]);
  expect(figures(ROWS, "samples")).toEqual([]);
});

test("a line has the file's own values", () => {
  expect(line(ROWS, "train", "loss")).toEqual([{ step: 10, value: 2.5 }, { step: 30, value: 1.7976931348623157 }]);
  expect(line(ROWS, "valid", "nothing")).toEqual([]);
});

test("means of rows around each, which do not lag", () => {
  const rising = Array.from({ length: 9 }, (_, step) => ({ step, value: 2 * step }));
  smoothed(rising, 5).forEach((point, i) => expect(point.value).toBeCloseTo(2 * i, 12));
  const noisy = [0, 3, 0, 3, 0].map((value, step) => ({ step, value }));
  expect(smoothed(noisy, 3).map((point) => point.value)).toEqual([0, 1, 2, 1, 0]);
  expect(smoothed(noisy, 1)).toEqual(noisy);
});

test("the nearest step", () => {
  const points = line(ROWS, "train", "lr");
  expect(nearest(points, -5)!.step).toBe(10);
  expect(nearest(points, 24)!.step).toBe(20);
  expect(nearest(points, 26)!.step).toBe(30);
  expect(nearest(points, 900)!.step).toBe(30);
  expect(nearest([], 1)).toBeNull();
});

test("fewer points keep the lowest and the highest", () => {
  const points = Array.from({ length: 10_000 }, (_, step) => ({ step, value: step === 4321 ? 99 : step === 8765 ? -99 : Math.sin(step) }));
  const few = thinned(points, 100);
  expect(few.length).toBeLessThan(250);
  expect(Math.max(...few.map((point) => point.value))).toBe(99);
  expect(Math.min(...few.map((point) => point.value))).toBe(-99);
  expect(few.every((point, i) => i === 0 || few[i - 1]!.step < point.step)).toBe(true);
  expect(thinned(points.slice(0, 50), 100)).toEqual(points.slice(0, 50));
});

test("numbers of an axis, and one of logarithms", () => {
  expect([0.002, 0.00025, 2.5e-7, 12, 437_088, 2e6].map(told)).toEqual(["0.002", "0.00025", "2.5e-7", "12", "437.1k", "2M"]);
  const axis = logarithms(Math.log10(1.4), Math.log10(8.8));
  expect(axis.ticks.map(axis.told)).toEqual(["1.5", "2", "3", "5", "7"]);
  expect(logarithms(0, 0).ticks.length).toBeGreaterThan(0);
  expect(logarithms(-12, 0).ticks.length).toBeLessThan(10);
});

test("the same line over the tokens that were read", () => {
  expect(overTokens(line(ROWS, "train", "loss"), 63.96)).toEqual([{ step: 640, value: 2.5 }, { step: 1919, value: 1.7976931348623157 }]);
  expect(overTokens([], 64)).toEqual([]);
});

test("figures have names above their charts", () => {
  expect(["lr", "bits_per_byte"].map(titleOf)).toEqual(["Learning rate", "bits per byte"]);
});

test("figures of layers, by what is measured", () => {
  const rows: Row[] = [
    { step: 5, kind: "layers", "gradient/embedding": 1, "gradient/stack.layers.0": 2, "update/embedding": 0.25 },
    { step: 10, kind: "layers", "gradient/embedding": 3, "gradient/stack.layers.0": null, "update/embedding": 0.5 },
    { step: 10, kind: "train", loss: 4 },
  ];
  expect(byLayer(rows)).toEqual([
    {
      measure: "gradient",
      layers: [{ name: "embedding", points: [{ step: 5, value: 1 }, { step: 10, value: 3 }] }, { name: "stack.layers.0", points: [{ step: 5, value: 2 }] }],
    },
    {
      measure: "update", // which a layer of zeros has none of: it keeps its place, and so its colour
      layers: [{ name: "embedding", points: [{ step: 5, value: 0.25 }, { step: 10, value: 0.5 }] }, { name: "stack.layers.0", points: [] }],
    },
  ]);
  expect(byLayer([])).toEqual([]);
});
