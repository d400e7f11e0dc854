"""Recall of captions and of pictures, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from legato.errors import DataError
from legato.evaluation import retrieval
from legato.evaluation.retrieval import ranks_of_captions, ranks_of_pictures, recalls

# Pictures are the axes, so that a caption's components are its products with them.
PICTURES = np.eye(3)
CAPTIONS = np.array(
    [
        [0.8, 0.6, 0.0],  # of picture 0: nearest to it
        [0.0, 0.8, 0.6],  # of picture 0: the farthest from it
        [0.6, 0.8, 0.0],  # of picture 1: nearest, as is the one before
        [0.6, 0.0, 0.8],  # of picture 1: farthest from it
        [0.0, 0.6, 0.8],  # of picture 2
    ]
)
PICTURE_OF = [0, 0, 1, 1, 2]


def test_a_pictures_best_caption_counts_and_equals_come_first() -> None:
    # Picture 0: 0.8 is the best of all. Picture 1: its 0.8 ties with another's. Picture 2: its 0.8 ties, too.
    assert ranks_of_captions(PICTURES, CAPTIONS, PICTURE_OF).tolist() == [1, 2, 2]


def test_every_caption_looks_for_its_picture() -> None:
    # 0.8 over 0.6 and 0; 0 below both; 0.8; 0 below both; 0.8.
    assert ranks_of_pictures(PICTURES, CAPTIONS, PICTURE_OF).tolist() == [1, 3, 1, 3, 1]


def test_a_picture_that_is_as_near_as_the_right_one_comes_before_it() -> None:
    assert ranks_of_pictures(np.ones((3, 2)), np.ones((1, 2)), [1]).tolist() == [3]


def test_recall_at_one_five_and_ten() -> None:
    found = recalls(PICTURES, CAPTIONS, PICTURE_OF)
    assert found["text_recall_1"] == pytest.approx(1 / 3)
    assert found["image_recall_1"] == pytest.approx(3 / 5)
    assert [found[f"{kind}_recall_{k}"] for kind in ("text", "image") for k in (5, 10)] == [1, 1, 1, 1]
    assert found["recall"] == pytest.approx((1 / 3 + 3 / 5 + 4) / 6)


def test_the_edges_of_five_and_ten() -> None:
    """One picture after the other stands before the right one: the K-th still counts, the next does not."""
    for place in range(12):  # how many are nearer
        pictures = np.array([[1.0, 0.0]] * place + [[0.6, 0.8]] + [[0.0, 1.0]] * (12 - place))
        found = recalls(pictures, np.array([[1.0, 0.0]]), [place])
        assert [found[f"image_recall_{k}"] for k in (1, 5, 10)] == [place < k for k in (1, 5, 10)]


def test_vectors_of_any_length_count_by_their_direction() -> None:
    long = CAPTIONS * np.array([[3.0], [0.1], [7.0], [2.0], [0.5]])
    assert recalls(PICTURES * 4, long, PICTURE_OF) == recalls(PICTURES, CAPTIONS, PICTURE_OF)


def test_a_picture_without_a_caption_is_only_in_the_way() -> None:
    more = np.concatenate([PICTURES, [[0.8, 0.6, 0.0]]])  # exactly the first caption
    assert ranks_of_captions(more, CAPTIONS, PICTURE_OF).tolist() == [1, 2, 2]
    assert ranks_of_pictures(more, CAPTIONS, PICTURE_OF)[0] == 2


def test_many_rows_are_ranked_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    pictures, captions = random.normal(size=(30, 4)), random.normal(size=(75, 4))
    owners = random.integers(0, 30, 75)
    whole = recalls(pictures, captions, owners)
    monkeypatch.setattr(retrieval, "CHUNK", 7)
    assert recalls(pictures, captions, owners) == whole


@pytest.mark.parametrize(
    ("owners", "message"),
    [([0], "1 captions say"), ([0, 3], "picture 3, but"), ([-1, 0], "picture -1, but .* 0 to 2")],
)
def test_captions_of_no_picture_are_refused(owners: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        recalls(PICTURES, CAPTIONS[:2], owners)
