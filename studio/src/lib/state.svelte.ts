/** What is chosen, shared by all views and kept in the address: a link opens the same view on the same things. */

import { DARK, LIGHT, type Theme } from "./theme";

const LONGEST = 200_000; // characters of an address: a text is in it
const DARKNESS = matchMedia("(prefers-color-scheme: dark)");

class Chosen {
  view = $state("");
  input = $state(0); // which of a page's reports
  position = $state<number | null>(null); // of the stream that a model writes to, or reads
  source = $state<number | null>(null); // of what an encoder reads
  layer = $state<string | null>(null); // the name of a tensor
  head = $state<number | null>(null); // null: the mean of all
  unit = $state<number | null>(null);
  special = $state(true); // whether special tokens are shown
  text = $state<string | null>(null); // what a server is asked to look at, …
  written = $state<string | null>(null); // … what is written of it, …
  prefix = $state<string | null>(null); // … or what that begins with, …
  layers = $state<string | null>(null); // … and which layers: 0,3
  more = $state<Record<string, string>>({}); // what one view alone keeps
  dark = $state(DARKNESS.matches);

  get theme(): Theme {
    return this.dark ? DARK : LIGHT;
  }

  /** Nonsense is left out, and counts as nothing chosen. */
  read(hash: string): void {
    const told = new URLSearchParams(hash.replace(/^#/, "").slice(0, LONGEST));
    const whole = (key: string): number | null => {
      const value = told.get(key);
      return value !== null && /^\d{1,6}$/.test(value) ? Number(value) : null;
    };
    this.view = told.get("view") ?? "";
    this.input = whole("input") ?? 0;
    this.position = whole("position");
    this.source = whole("source");
    this.layer = told.get("layer");
    this.head = whole("head");
    this.unit = whole("unit");
    this.special = told.get("special") !== "0";
    this.text = told.get("text");
    this.written = told.get("written");
    this.prefix = told.get("prefix") || null;
    this.layers = /^\d{1,5}(,\d{1,5})*$/.test(told.get("layers") ?? "") ? told.get("layers") : null;
    if (told.has("dark")) this.dark = told.get("dark") === "1";
    const more: Record<string, string> = {};
    for (const [key, value] of told) if (key.startsWith("x.")) more[key.slice(2)] = value;
    this.more = more;
  }

  get address(): string {
    const told = new URLSearchParams();
    if (this.view) told.set("view", this.view);
    if (this.input) told.set("input", String(this.input));
    if (this.position !== null) told.set("position", String(this.position));
    if (this.source !== null) told.set("source", String(this.source));
    if (this.layer !== null) told.set("layer", this.layer);
    if (this.head !== null) told.set("head", String(this.head));
    if (this.unit !== null) told.set("unit", String(this.unit));
    if (!this.special) told.set("special", "0");
    if (this.text !== null) told.set("text", this.text);
    if (this.written !== null) told.set("written", this.written);
    if (this.prefix !== null) told.set("prefix", this.prefix);
    if (this.layers !== null) told.set("layers", this.layers);
    if (this.dark !== DARKNESS.matches) told.set("dark", this.dark ? "1" : "0");
    for (const [key, value] of Object.entries(this.more)) told.set(`x.${key}`, value);
    return "#" + told.toString();
  }
}

export const chosen = new Chosen();
