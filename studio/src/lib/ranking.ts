/** Which units follow a property of the text, on this text. */

import type { Numbers } from "./report";

/** Pearson's correlation of each column of (T, D) with (T,); 0 where one of them never changes. */
export function correlations(of: Numbers, wanted: ArrayLike<number>): Float32Array {
  const [rows, columns] = of.shape as [number, number];
  const means = new Float64Array(columns);
  let mean = 0;
  for (let r = 0; r < rows; r++) {
    mean += wanted[r]! / rows;
    for (let c = 0; c < columns; c++) means[c]! += of.values[r * columns + c]! / rows;
  }
  const [products, squares] = [new Float64Array(columns), new Float64Array(columns)];
  let square = 0;
  for (let r = 0; r < rows; r++) {
    const distance = wanted[r]! - mean;
    square += distance * distance;
    for (let c = 0; c < columns; c++) {
      const own = of.values[r * columns + c]! - means[c]!;
      products[c]! += own * distance;
      squares[c]! += own * own;
    }
  }
  return Float32Array.from({ length: columns }, (_, c) => {
    const spread = Math.sqrt(squares[c]! * square);
    return spread > 1e-9 ? products[c]! / spread : 0;
  });
}

/** The spread of each column. */
export function spreads(of: Numbers): Float32Array {
  const [rows, columns] = of.shape as [number, number];
  const found = new Float32Array(columns);
  for (let c = 0; c < columns; c++) {
    let [sum, squares] = [0, 0];
    for (let r = 0; r < rows; r++) {
      const value = of.values[r * columns + c]!;
      sum += value;
      squares += value * value;
    }
    found[c] = Math.sqrt(Math.max(0, squares / rows - (sum / rows) ** 2));
  }
  return found;
}

/** 1 at each token that ends inside of a match, 0 elsewhere. */
export function matches(tokens: readonly string[], pattern: RegExp): Float32Array {
  const text = tokens.join("");
  const inside = new Uint8Array(text.length);
  for (const match of text.matchAll(new RegExp(pattern.source, "g" + (pattern.flags.includes("u") ? "u" : ""))))
    inside.fill(1, match.index, match.index + match[0].length);
  let end = 0;
  return Float32Array.from(tokens, (token) => {
    end += token.length;
    return inside[Math.max(0, end - 1)] ?? 0;
  });
}
