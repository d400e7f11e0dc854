/** The rows of a run that a server follows; they stay while the page shows something else. */

import type { Row } from "./course";
import { rows, type Rows } from "./server";

export const PAUSE = 2000; // milliseconds between two looks
const AT_MOST = 15_000; // … while nobody answers

class Live {
  rows = $state.raw<readonly Row[]>([]);
  problem = $state<string | null>(null);
  #file = "";
  #after = 0;
  #failed = 0;

  /** Look for new rows now and then, until the function that is given back is called. */
  follow(): () => void {
    let timer = 0;
    let over = false;
    const look = async (): Promise<void> => {
      if (!document.hidden) await this.#look();
      if (!over) timer = window.setTimeout(look, Math.min(AT_MOST, PAUSE * (1 + this.#failed)));
    };
    void look();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }

  async #look(): Promise<void> {
    try {
      let found: Rows;
      do {
        found = await rows(this.#after, this.#file);
        const again = found.file !== this.#file; // another file: of a run that was taken up again
        if (again) this.rows = found.rows;
        else if (found.rows.length) this.rows = [...this.rows, ...found.rows];
        [this.#file, this.#after] = [found.file, found.after];
      } while (found.more);
      [this.problem, this.#failed] = [null, 0];
    } catch (problem) {
      this.problem = problem instanceof Error ? problem.message : String(problem);
      this.#failed += 1;
    }
  }
}

export const live = new Live();
