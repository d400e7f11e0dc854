import { describe, expect, it } from "vitest";
import { aliveAt, layout, parseLayout, pathTo, spread, type Nodes } from "./treeLayout";

/** Two steps of two beams: the root, three candidates, then two behind each of the two that were kept. */
const NODES: Nodes = {
  parent: [-1, 0, 0, 0, 1, 1, 2, 2],
  step: [0, 1, 1, 1, 2, 2, 2, 2],
  token: [0, 1, 2, 3, 4, 5, 6, 7],
  text: ["", "a", "b", "c", "d", "e", "f", "g"],
  logprob: [0, -0.5, -1, -3, -0.1, -4, -2, -3],
  score: [0, -0.5, -1, -3, -0.6, -4.5, -3, -4],
  rank: [1, 1, 2, 3, 1, 4, 2, 3],
  state: [1, 1, 1, 0, 2, 0, 0, 0],
};
const BOXES = NODES.parent.map((_, i) => ({ width: 20 + i, height: i % 2 ? 10 : 20 }));
const WEIGHTS = NODES.parent.map((_, i) => ([0, 1, 4].includes(i) ? 1000 : 1));
const ALL = NODES.parent.map(() => true);

describe("places in one dimension", () => {
  it("are what is wanted where there is room", () => expect(spread([0, 10, 30], [1, 1, 1], [0, 5, 5])).toEqual([0, 10, 30]));
  it("keep their distances, around what is wanted", () => expect(spread([0, 0, 0], [1, 1, 1], [0, 4, 4])).toEqual([-4, 0, 4]));
  it("leave the heavy one where it wants to be", () => {
    const [, heavy, light] = spread([0, 0, 0], [1, 1e9, 1], [0, 4, 4]);
    expect(heavy).toBeCloseTo(0, 5);
    expect(light).toBeCloseTo(4, 5);
  });
  it("are none of nothing", () => expect(spread([], [], [])).toEqual([]));
});

describe("a search", () => {
  const placed = layout(NODES, BOXES, WEIGHTS, ALL, 30);
  it("has its steps side by side", () => {
    expect(placed.left).toEqual([0, 50, 103]);
    expect(placed.x.slice(4)).toEqual([103, 103, 103, 103]);
    expect(placed.width).toBe(103 + 27);
  });
  it("lets no two nodes of a step overlap", () => {
    for (const step of [1, 2]) {
      const column = NODES.step.flatMap((each, i) => (each === step ? [i] : [])).sort((a, b) => placed.y[a]! - placed.y[b]!);
      column.slice(1).forEach((node, i) => {
        const least = (BOXES[node]!.height + BOXES[column[i]!]!.height) / 2;
        expect(placed.y[node]! - placed.y[column[i]!]!).toBeGreaterThanOrEqual(least - 1e-9);
      });
    }
  });
  it("lets no two lines cross", () => {
    for (const a of [4, 5, 6, 7])
      for (const b of [4, 5, 6, 7]) {
        const above = placed.y[NODES.parent[a]!]! - placed.y[NODES.parent[b]!]!;
        if (above < 0) expect(placed.y[a]!).toBeLessThan(placed.y[b]!);
      }
  });
  it("is straight where it weighs most", () => {
    expect(Math.abs(placed.y[4]! - placed.y[1]!)).toBeLessThan(0.5);
    expect(Math.abs(placed.y[1]! - placed.y[0]!)).toBeLessThan(0.5);
  });
  it("lies inside of its height", () => {
    placed.y.forEach((y, i) => {
      expect(y - BOXES[i]!.height / 2).toBeGreaterThanOrEqual(-1e-9);
      expect(y + BOXES[i]!.height / 2).toBeLessThanOrEqual(placed.height + 1e-9);
    });
  });
  it("has no place for what is not shown, nor for what is behind it", () => {
    const some = layout(NODES, BOXES, WEIGHTS, ALL.map((_, i) => i !== 2), 30);
    expect(some.x.map(Number.isNaN)).toEqual([false, false, true, false, false, false, true, true]);
  });
  it("is a root where nothing was written", () => {
    const alone: Nodes = { parent: [-1], step: [0], token: [0], text: [""], logprob: [0], score: [0], rank: [1], state: [1] };
    expect(layout(alone, [{ width: 20, height: 10 }], [1], [true])).toMatchObject({ left: [0], width: 20, height: 10 });
  });
});

describe("what becomes of a hypothesis", () => {
  it("is open while it is among those that are kept", () => expect(aliveAt(NODES, 1)).toEqual([true, true, true, false, false, false, false, false]));
  it("dies with its children, unless it ended", () => expect(aliveAt(NODES, 2)).toEqual([true, true, false, false, true, false, false, false]));
  it("is a path", () => expect(pathTo(NODES.parent, 5)).toEqual([1, 5]));
});

describe("a parse", () => {
  const nodes = [
    { label: "S", children: [1, 3] },
    { label: "NP", children: [2] },
    { label: "dogs", children: [] },
    { label: "VP", children: [4] },
    { label: "bark", children: [] },
  ];
  it("has its words on one line and constituents above them", () => {
    const placed = parseLayout(nodes, [10, 10, 30, 10, 20], 10);
    expect(placed.depth).toEqual([0, 1, 2, 1, 2]);
    expect(placed.x).toEqual([32.5, 15, 15, 50, 50]);
    expect(placed.width).toBe(60);
  });
  it("has all words at the bottom, however deep", () => {
    const deep = [{ label: "S", children: [1, 2] }, { label: "a", children: [] }, { label: "NP", children: [3] }, { label: "b", children: [] }];
    expect(parseLayout(deep, [1, 1, 1, 1]).depth).toEqual([0, 2, 1, 2]);
  });
});
