"""How many constituents of a tree have exactly the same words."""

from __future__ import annotations

from legato.data.formats.trees import Close, Open, Tree, Word, walk


def longest_chain(tree: Tree) -> int:
    """The most constituents over exactly the same words, each the only child of the one above."""
    longest = 0
    levels: list[list[int]] = [[]]  # for each open constituent, the chain that each of its children begins
    for step in walk(tree):
        match step:
            case Open():
                levels.append([])
            case Word():
                levels[-1].append(0)
            case Close():
                below = levels.pop()
                levels[-1].append(below[0] + 1 if len(below) == 1 else 1)
                longest = max(longest, levels[-1][-1])
    return longest
