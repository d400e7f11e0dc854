/** Tokens as they are shown: what cannot be seen gets a sign. */

export function shown(token: string): string {
  if (token === "") return "∅";
  return token.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f]/g, "�");
}

export function short(token: string, most = 14): string {
  const whole = shown(token);
  return whole.length > most ? whole.slice(0, most - 1) + "…" : whole;
}

/** Whether a token is one of the tokenizer's own: <s>, [CLS], <|endoftext|>. */
export function special(token: string): boolean {
  return /^(<[^<>\s]+>|\[[A-Z]+\d*\])$/.test(token);
}
