/** softmax(s / √K), and what is a step on the way. */

export function softmax(scores: readonly number[]): number[] {
  const finite = scores.filter(Number.isFinite);
  const top = finite.length ? Math.max(...finite) : 0;
  const raised = scores.map((score) => (Number.isFinite(score) ? Math.exp(score - top) : 0));
  const sum = raised.reduce((total, value) => total + value, 0) || 1;
  return raised.map((value) => value / sum);
}

/** Numbers of a line that people write: commas, semicolons or spaces between them; null where something is none. */
export function numbers(line: string): number[] | null {
  const parts = line.split(/[\s,;]+/).filter((part) => part !== "");
  const found = parts.map(Number);
  return found.length && found.length <= 64 && found.every(Number.isFinite) ? found : null;
}

export const LECTURE = "112, 96, 16, 8";

/** The scores to work through: those that were typed, or the lecture's where no head has any; null: a head's. */
export function scoresOf(typed: string | undefined, hasHeads: boolean): string | null {
  return typed ?? (hasHeads ? null : LECTURE);
}

export function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
}
