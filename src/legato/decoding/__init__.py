"""The search: greedy, beam, sampling; scores, constraints, stopping."""

from legato.decoding.frontier import Constraint, Hypothesis, cut_at_stop
from legato.decoding.options import SearchOptions
from legato.decoding.scores import filter_scores
from legato.decoding.search import search

__all__ = ["Constraint", "Hypothesis", "SearchOptions", "cut_at_stop", "filter_scores", "search"]
