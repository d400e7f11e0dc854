/** The server behind this page, where there is one: what it shows, reports of texts, rows of a run. */

import type { Row, RunView } from "./course";
import type { Report, Source } from "./report";

export interface Studio {
  model: Report["model"] | null; // null: a run that has saved none yet
  reads: string[]; // text, image, audio
  writes: "text" | "continuation" | null; // of what it reads, behind it, or nothing
  given: string | null; // what was named on the command line
  most: number; // characters of a text
  run: RunView | null; // without its rows
  map: unknown; // the view of the model itself
}

export interface Question {
  text: string;
  written: string | null; // read back in place of what the model would write
  prefix: string | null; // what that begins with
  layers: number[] | null;
}

export interface Rows {
  rows: Row[];
  file: string;
  begin: number;
  after: number;
  more: boolean;
}

const GONE = "The server does not answer: it may have been stopped.";

async function asked(path: string, options: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, { ...options, cache: "no-store" });
  } catch (problem) {
    if (problem instanceof DOMException && problem.name === "AbortError") throw problem;
    throw new Error(GONE);
  }
  if (answer.ok) return answer;
  const told = (await answer.json().catch(() => null)) as { error?: string } | null;
  throw new Error(told?.error ?? `The server answered ${answer.status}.`);
}

/** Whether the page may have come from a server; a file has not. */
export function served(): boolean {
  return /^https?:$/.test(location.protocol);
}

export async function studio(): Promise<Studio> {
  return (await asked("/api/studio")).json() as Promise<Studio>;
}

/** A report of a text; its arrays are fetched when a view wants them. */
export async function inspected(question: Question, signal: AbortSignal): Promise<Source> {
  const body = JSON.stringify(Object.fromEntries(Object.entries(question).filter(([, value]) => value !== null)));
  const answer = await asked("/api/inspect", { method: "POST", headers: { "content-type": "application/json" }, body, signal });
  const { id, ...report } = (await answer.json()) as Report & { id: string };
  return {
    report,
    async blob(index) {
      return new Uint8Array(await (await asked(`/api/reports/${id}/arrays/${index}`)).arrayBuffer());
    },
  };
}

/** The rows of the run behind byte `after` of a file; from the first one, where that file is another now. */
export async function rows(after: number, file: string): Promise<Rows> {
  return (await asked(`/api/run?${new URLSearchParams({ after: String(after), file })}`)).json() as Promise<Rows>;
}
