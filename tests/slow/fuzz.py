"""The fuzzer by hand: run one case again, see how many there are, or run as many as there is time for.

python tests/slow/fuzz.py --case "predict-lm run/best/config.json=json.value#3"
python tests/slow/fuzz.py --count 2000 --only train-lm --report found.json
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent), str(Path(__file__).parents[1])]

if __name__ == "__main__":
    from fuzzing.campaign import main

    main()
