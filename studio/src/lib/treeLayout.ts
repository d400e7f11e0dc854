/** Where the nodes of a tree are drawn: a search from left to right, step by step; a parse from the root down. */

/** A search, as the report has it: columns, the root first, then step by step. */
export interface Nodes {
  parent: number[]; // −1: the root
  step: number[];
  token: number[];
  text: string[];
  logprob: number[];
  score: number[]; // log p of all up to here
  rank: number[]; // from 1, among all that might have come at that step
  state: number[]; // 0: pruned, 1: kept, 2: a hypothesis ended there
}

/** About how wide a text is, in a font whose letters are all equal: the same for everybody, and before there is a canvas. */
export function textWidth(text: string, size: number): number {
  let letters = 0;
  for (const sign of text) letters += sign >= "\u1100" && !/[\u2000-\u2bff]/.test(sign) ? 1.05 : 0.61;
  return letters * size;
}

export interface Box {
  width: number;
  height: number;
}

export interface Placed {
  x: number[]; // the left edge of each node; NaN where it is not shown
  y: number[]; // its middle
  left: number[]; // the left edge of each step
  width: number;
  height: number;
}

export function childrenOf(parent: readonly number[]): number[][] {
  const found: number[][] = parent.map(() => []);
  parent.forEach((above, node) => above >= 0 && found[above]!.push(node));
  return found;
}

/** From the first step to a node; the root is left out. */
export function pathTo(parent: readonly number[], node: number): number[] {
  const found: number[] = [];
  for (let at = node; at > 0; at = parent[at]!) found.push(at);
  return found.reverse();
}

/** Which nodes lead to something that is open or has ended once `step` is done. */
export function aliveAt(nodes: Nodes, step: number): boolean[] {
  const alive = nodes.parent.map((_, node) => nodes.step[node]! <= step && (nodes.state[node] === 2 || (nodes.state[node] === 1 && nodes.step[node] === step)));
  for (let node = alive.length - 1; node > 0; node--) if (alive[node]) alive[nodes.parent[node]!] = true;
  return alive;
}

/**
 * Places in one dimension, in the given order, each at least `apart` behind the one before (apart[0] counts for nothing),
 * as close to what is wanted as weighted squares say (pool adjacent violators).
 */
export function spread(wanted: readonly number[], weight: readonly number[], apart: readonly number[]): number[] {
  const offsets: number[] = [];
  wanted.forEach((_, i) => offsets.push(i ? offsets[i - 1]! + apart[i]! : 0));
  const blocks: { sum: number; weight: number; count: number }[] = [];
  wanted.forEach((place, i) => {
    blocks.push({ sum: (place - offsets[i]!) * weight[i]!, weight: weight[i]!, count: 1 });
    for (let last = blocks.length - 1; last > 0; last--) {
      const [before, after] = [blocks[last - 1]!, blocks[last]!];
      if (before.sum / before.weight <= after.sum / after.weight) break;
      blocks.splice(last - 1, 2, { sum: before.sum + after.sum, weight: before.weight + after.weight, count: before.count + after.count });
    }
  });
  const levels = blocks.flatMap((block) => Array.from({ length: block.count }, () => block.sum / block.weight));
  return levels.map((level, i) => level + offsets[i]!);
}

/**
 * Steps side by side. A step's nodes are in the order of their parents, so no two lines cross, then by weight and score;
 * and as level with their parents as there is room, those of more `weight` more so: what matters runs straight.
 */
export function layout(nodes: Nodes, boxes: readonly Box[], weight: readonly number[], shown: readonly boolean[], gap = 34): Placed {
  const count = nodes.parent.length;
  const [x, y] = [Array.from({ length: count }, () => NaN), Array.from({ length: count }, () => NaN)];
  const children = childrenOf(nodes.parent);
  const left: number[] = [];
  let [column, begin, low, high] = [[0], 0, 0, 0];
  while (column.length) {
    const wanted = column.map((node) => (node === 0 ? 0 : y[nodes.parent[node]!]!));
    const apart = column.map((node, i) => (i ? (boxes[column[i - 1]!]!.height + boxes[node]!.height) / 2 : 0));
    const places = spread(wanted, column.map((node) => weight[node]!), apart);
    let widest = 0;
    column.forEach((node, i) => {
      [x[node], y[node]] = [begin, places[i]!];
      widest = Math.max(widest, boxes[node]!.width);
      low = Math.min(low, places[i]! - boxes[node]!.height / 2);
      high = Math.max(high, places[i]! + boxes[node]!.height / 2);
    });
    left.push(begin);
    begin += widest + gap;
    const order = (a: number, b: number): number => weight[b]! - weight[a]! || nodes.score[b]! - nodes.score[a]!;
    column = column.flatMap((node) => children[node]!.filter((child) => shown[child]).sort(order));
  }
  return { x, y: y.map((place) => place - low), left, width: begin - gap, height: high - low };
}

/** A constituent, or a word, which has no children; the root is the first, and children come behind their parents. */
export interface ParseNode {
  label: string;
  children: number[];
}

export interface ParsePlaced {
  x: number[]; // the middle of each node
  depth: number[];
  deepest: number; // where the words are
  width: number;
}

/** Words side by side on one line, constituents above the middle of theirs. */
export function parseLayout(nodes: readonly ParseNode[], widths: readonly number[], gap = 14): ParsePlaced {
  const depth = nodes.map(() => 0);
  const x = nodes.map(() => 0);
  nodes.forEach((node, i) => node.children.forEach((child) => (depth[child] = depth[i]! + 1)));
  const deepest = Math.max(0, ...depth);
  let right = 0;
  nodes.forEach((node, i) => {
    if (node.children.length) return;
    depth[i] = deepest;
    x[i] = right + widths[i]! / 2;
    right += widths[i]! + gap;
  });
  for (let i = nodes.length - 1; i >= 0; i--) {
    const below = nodes[i]!.children;
    if (below.length) x[i] = (x[below[0]!]! + x[below[below.length - 1]!]!) / 2;
  }
  return { x, depth, deepest, width: Math.max(0, right - gap) };
}
