"""The model that people hold: weights, tokenizer and task in one object."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from legato.config import validate
from legato.data.items import items_of, texts_of
from legato.data.text.tokenizers import AnyTokenizer, StreamDecoder, Tokenizer, decode_behind
from legato.decoding import Hypothesis, SearchOptions, cut_at_stop, search
from legato.decoding.constraints import check_followed, constraint_of
from legato.decoding.emitter import Cancelled, Emitter, Generated, pieces_of
from legato.decoding.options import SearchSettings, with_search_options
from legato.decoding.sliding import Sliding
from legato.errors import ConfigError, LegatoError, brief, suggest, warn
from legato.folders.chat_template import Messages, Tools
from legato.folders.finite_scores import finite_scores
from legato.folders.loaded import Loaded
from legato.models.base import count_parameters
from legato.other_names import ELSEWHERE, renamed
from legato.registry import TASKS
from legato.tasks.base import Task, evaluated, member_of, rows_in_memory
from legato.tasks.predictions import Predictions

if TYPE_CHECKING:  # imported where they are needed: most models are asked for something else
    from legato.inspect.trace import Trace
    from legato.tasks.classification.prompting import Prompter
    from legato.tasks.embedding.text_vectors import TextVectors, VectorArray

Prompt = str | Sequence[int]
"""A text, or its tokens as they are."""


class Model:
    """A trained model. Get one with `legato.load`.

    >>> model = legato.load("runs/x")                                   # doctest: +SKIP
    >>> model.generate("The ", search="sample", top_p=0.9)              # doctest: +SKIP
    """

    def __init__(self, loaded: Loaded, device: torch.device) -> None:
        self.loaded = loaded
        self.folder = loaded.folder
        self.module = loaded.module.to(device)
        self.task = loaded.task
        self.about = loaded.about
        self.device = device

    @property
    def tokenizer(self) -> AnyTokenizer:
        """Of the text that it reads."""
        return self.loaded.tokenizer

    def __repr__(self) -> str:
        size = f"{count_parameters(self.module):,} parameters"
        return f"Model({str(self.folder)!r}, {self.task}, {self.module.config.name}, {size}, {self.device})"

    @with_search_options
    def generate(self, prompt: Prompt | Sequence[Prompt] = "", **options: Unpack[SearchSettings]) -> Any:
        """Continue a text, or each of several. The options are those of `legato generate`.

        A prompt may also be a list of token numbers, which stand as they are. Returns the text written after the
        prompt; a list of texts for a list of prompts; with `nbest` > 1 a list for each.

        >>> model.generate("The ", max_tokens=40, search="sample", top_p=0.9, seed=1)     # doctest: +SKIP
        """
        prompt = prompt.tolist() if isinstance(prompt, np.ndarray | torch.Tensor) else prompt
        several = isinstance(prompt, Sequence) and not isinstance(prompt, str)
        single = not several or (len(prompt) > 0 and all(isinstance(token, int) for token in prompt))
        many: list[Any] = [prompt] if single else list(prompt)
        checked = validate(SearchOptions, options)
        texts = [[g.text for g in found] for found in self.hypotheses(many, checked)]
        shaped: list[Any] = [found[0] if checked.nbest == 1 else found for found in texts]
        return shaped[0] if single else shaped

    @with_search_options
    def chat(self, messages: str | Messages, *, image: Any = None, **options: Unpack[SearchSettings]) -> str:
        """The answer to a dialogue, which may be about a picture, by the folder's chat template.

        >>> model.chat([{"role": "user", "content": "Who are you?"}])         # doctest: +SKIP
        >>> model.chat("What is on it?", image="photo.jpg")                   # doctest: +SKIP
        """
        if image is None:
            return self.generate(self.chat_ids(messages), **options)
        ids = self.chat_ids(messages, about_picture=True)
        return self.hypotheses([ids], validate(SearchOptions, options), images=[image])[0][0].text

    def chat_ids(
        self, messages: str | Messages, *, about_picture: bool = False, tools: Tools | None = None
    ) -> list[int]:
        """A dialogue as the tokens before the model's answer; `generate`, `stream` and `write` take them.

        Where it is `about_picture`, image tokens stand before what the user says first.
        """
        self.check_chats()
        assert self.loaded.chat is not None
        assert isinstance(self.tokenizer, Tokenizer)
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        dialogue = items_of(messages, "message")
        if not dialogue:
            raise LegatoError("a dialogue needs a message")
        if about_picture:
            from legato.tasks.visual_chat.picture_talk import PictureTalk

            return PictureTalk.of(self.loaded).prompt(dialogue)
        return self.tokenizer.encode_template(self.loaded.chat.render(dialogue, tools=tools))

    def hypotheses(
        self, prompts: Sequence[Prompt], options: SearchOptions, on_token: Any = None, images: Sequence[Any] = ()
    ) -> list[list[Generated]]:
        """What the search found for each prompt, best first, with scores; `images` are pictures, one for each."""
        self.check_generates()
        ids = [self.begin(prompt, options) for prompt in items_of(prompts, "prompt")]
        found = self._search(ids, options, on_token, images)
        return [[self.finished(start, h, options) for h in best] for start, best in zip(ids, found, strict=True)]

    @with_search_options
    def stream(self, prompt: Prompt = "", **options: Unpack[SearchSettings]) -> Iterator[str]:
        """Yield the text piece by piece as it is written (greedy and sample only).

        Closing the iterator, or dropping it, ends the writing.

        >>> for piece in model.stream("The ", max_tokens=40): print(piece, end="")        # doctest: +SKIP
        """
        checked = validate(SearchOptions, options)
        self.check_generates()
        return pieces_of(lambda emit, cancelled: self.write(prompt, checked, emit, cancelled))

    def write(
        self,
        prompt: Prompt,
        options: SearchOptions,
        emit: Any,
        cancelled: Callable[[], bool] = lambda: False,
        images: Sequence[Any] = (),
    ) -> Generated:
        """Generate one text, handing each piece to `emit` as soon as it is certain; `images` may be its picture.

        Before each token `cancelled` is asked; where it says so, `Cancelled` is raised.
        """
        self.check_generates()
        if options.nbest > 1:
            raise LegatoError(f"one text is written at a time; nbest={options.nbest} needs generate")
        start = self.begin(prompt, options)
        decoder = StreamDecoder(self.tokenizer, after=start)
        out = Emitter(options.stop, emit)

        def on_token(row: int, token: int) -> None:
            if cancelled():
                raise Cancelled("nobody waits for this text any longer")
            out.push(decoder.push(token))

        found = self._search([start], options, on_token, images)
        out.push(decoder.finish())
        out.finish()
        return self.finished(start, found[0][0], options)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The prompt as tokens, with what stands before a text; tokens stand as they are."""
        if isinstance(prompt, str):
            return self.tokenizer.prompt(prompt)
        if not isinstance(prompt, Sequence | np.ndarray | torch.Tensor):
            raise LegatoError(f"a prompt is a text or a list of tokens, not {brief(repr(prompt))}")
        last = self.module.vocabulary - 1
        for token in prompt:
            if not isinstance(token, int | np.integer) or not 0 <= token <= last:
                raise LegatoError(f"{brief(repr(token))} is no token of {self.folder}: it has 0 to {last}")
        return [int(token) for token in prompt]

    def begin(self, prompt: Prompt, options: SearchOptions) -> list[int]:
        """The tokens to go on from, if they fit."""
        ids, max_length = self.prompt_ids(prompt), self.module.max_length
        if max_length is not None and len(ids) > max_length and not options.slide:
            raise LegatoError(
                f"the prompt has {len(ids):,} tokens, but the model reads {max_length:,} at most: shorten it, or "
                "let it slide (--slide), which forgets the beginning"
            )
        return ids

    @torch.no_grad()
    def embed(
        self,
        texts: str | Sequence[str] | None = None,
        batch_size: int = 32,
        *,
        image: Any = None,
        layers: str | None = None,
        pool: str | None = None,
        normalize: bool | None = None,
    ) -> VectorArray:
        """A vector for each text, (N, D), or (D,) for one: for sentence encoders what `sentence-transformers` gives.

        `layers` is last, first, second-to-last, sum-last-4, concat-last-4, sum-all or mix; `pool` is mean, cls, max
        or last. Left out: what the encoder's folder says, else the mean of the last layer. A text beyond what the
        model reads is cut. With `image` in place of texts, of a picture, or of each of a list of them.

        >>> model.embed(["a dog", "a cat"], layers="second-to-last").shape     # doctest: +SKIP
        (2, 384)
        """
        if pool == "none":
            raise ConfigError("pool=none leaves a vector for each token: use embed_tokens")
        if image is not None or texts is None:
            if layers is not None or pool is not None:
                raise ConfigError("layers and pool are for texts; leave them out with image")
            from legato.tasks.embedding.picture_vectors import embed_given

            return embed_given(self.loaded, texts, image, batch_size, normalise=bool(normalize))
        many = [texts] if isinstance(texts, str) else texts_of(texts)
        vectors = self._vectors(layers=layers, pool=pool, normalize=normalize)
        found = vectors.embed(many, batch_size)
        vectors.reader.warn_of_cuts()
        return found[0] if isinstance(texts, str) else found

    @torch.no_grad()
    def embed_tokens(
        self, texts: Sequence[str], batch_size: int = 32, *, layers: str | None = None, normalize: bool | None = None
    ) -> list[tuple[list[str], VectorArray]]:
        """The tokens of each text, its special tokens included, and a vector for each of them, (T, D).

        >>> tokens, vectors = model.embed_tokens(["roll the die"])[0]          # doctest: +SKIP
        >>> tokens, vectors.shape                                              # doctest: +SKIP
        (['[CLS]', 'roll', 'the', 'die', '[SEP]'], (5, 384))
        """
        vectors = self._vectors(layers=layers, normalize=normalize)
        found = vectors.tokens(texts_of(texts), batch_size)
        vectors.reader.warn_of_cuts()
        return found

    def trace(
        self,
        given: Any,
        *,
        layers: Collection[int] | None = None,
        heads: Collection[int] | None = None,
        only: str | None = None,
        written: str | None = None,
        task: str | None = None,
    ) -> Trace:
        """What the model computes of one input, by names: gates, cells, attention weights, states, guesses.

        >>> trace = model.trace("A dog runs.", layers=[0])                     # doctest: +SKIP
        >>> trace["lstm.0.forget_gate"].values.shape                           # doctest: +SKIP
        (5, 256)

        `layers`, `heads` and `only`, a regular expression of names, leave out the rest; `written` is read in place of
        what an encoder–decoder would write; `task` is one of several that a model has. What is given is what
        `predict` takes; of a model to talk to about pictures, a picture and a question (`inspect/trace.py`). In a
        notebook a trace shows itself as the studio does.
        """
        from legato.inspect.report.build import notebook_html
        from legato.inspect.trace import trace_of

        trace = trace_of(self.loaded, given, task=task, written=written, layers=layers, heads=heads, only=only)
        trace.shown_by = notebook_html
        return trace

    @torch.no_grad()
    def search(self, queries: str | Sequence[str], lines: Sequence[str], nbest: int = 5) -> Any:
        """The lines most like a query, best first, each with its cosine; a list of those for several queries.

        >>> model.search("a dog runs", ["the cat sleeps", "dogs are running"], nbest=1)     # doctest: +SKIP
        [SearchHit(text='dogs are running', score=0.81, number=1)]
        """
        from legato.tasks.embedding.text_vectors import TextIndex

        index = TextIndex(self._vectors(), texts_of(lines))
        found = index.search([queries] if isinstance(queries, str) else texts_of(queries), nbest)
        index.vectors.reader.warn_of_cuts()
        return found[0] if isinstance(queries, str) else found

    def evaluate(self, test: Any = None, /, **data: Any) -> dict[str, Any]:
        """The task's scores, as `legato eval`, on a file or a table in memory: `model.evaluate("c.txt")`."""
        with torch.no_grad():
            scores = evaluated(self.loaded, data if test is None else {**data, "test": test})
        return finite_scores(scores, self.module, _note, needed=("loss",))

    def predict(self, inputs: Any, *, probabilities: bool = False, **options: Any) -> Any:
        """What the model's task makes of a text (or what else it predicts from), or of each of several.

        Returns the best answer's text; a list of texts for a list; with `nbest` > 1, or of what there may be any
        number of, as boxes, a list for each. With `probabilities` a `Prediction` in place of each: its text, score,
        probability, spans and other answers; a list of those has `to_pandas()`. Options, as the task has them:
        nbest; beams, length_penalty, max_tokens, to, alignments (of what writes); context (qa); labels, template
        (image-text); search (embedding, image-text); threshold (detection); timestamps, language, lm, lm_weight,
        length_bonus (speech).

        >>> legato.load("runs/en-de").predict(["A dog runs."], beams=4)                   # doctest: +SKIP
        ['Ein Hund rennt.']
        >>> legato.load("runs/reviews").predict("a fine film", probabilities=True)        # doctest: +SKIP
        Prediction('good', probability=0.9921)
        """
        task: type[Task] = TASKS.get(self.task)
        inputs = rows_in_memory(self.loaded, inputs)
        single = isinstance(inputs, task.Input)
        many = [inputs] if single else items_of(inputs, task.input_name, alone=True)
        predictions = self.predictions(many, **options)
        predictions.check("" if single else task.input_name)
        if probabilities:
            return predictions[0] if single else predictions
        several = task.any_number or any(int(options.get(name, 1)) > 1 for name in ("nbest", *ELSEWHERE["nbest"]))
        shaped = [[answer.text for answer in p.answers] if several else p.text for p in predictions]
        return shaped[0] if single else shaped

    @property
    def labels(self) -> list[str]:
        """A classifier's classes or labels, in the order of the columns of `predict_proba`."""
        from legato.tasks.classification.classifier import class_names

        return class_names(self.loaded)

    def predict_proba(self, inputs: Any) -> NDArray[np.float64]:
        """A classifier's probabilities, (N, classes), or (classes,) for one input; `labels` has the classes' order.

        >>> model.predict_proba(["a fine film", "a dull play"]).shape, model.labels       # doctest: +SKIP
        ((2, 2), ['bad', 'good'])
        """
        labels, found = self.labels, self.predict(inputs, probabilities=True)
        return found.table(labels) if isinstance(found, Predictions) else Predictions([found]).table(labels)[0]

    def for_task(self, name: str | None = None) -> Model:
        """Of a model of several tasks, what one of them is asked of; any other model is for its one task.

        >>> legato.load("runs/u").for_task("films").predict("a gem of a film")      # doctest: +SKIP
        'positive'
        """
        return Model(member_of(self.loaded, name), self.device)

    def predictions(self, inputs: Sequence[Any], **options: Any) -> Predictions:
        """What `predict` with `probabilities` gives of a list; an input may have a problem instead of answers."""
        task: type[Task] = TASKS.get(self.task)
        many = items_of(inputs, task.input_name)
        for number, given in enumerate(many, start=1):
            if not isinstance(given, task.Input):
                raise LegatoError(f"{task.input_name} {number} is no {task.input_name}: {brief(repr(given))}")
        if task.Options is None:
            self.check_generates()
            raise LegatoError(f"{self.folder} is a model for {self.task}, which generates: use legato generate")
        fields = task.Options.model_fields
        options = renamed(options, fields)
        for name in sorted(options.keys() - fields.keys()):
            raise ConfigError(f"{self.task} has no option '{name}'; {suggest(name, [*fields, 'probabilities'])}")
        with torch.no_grad():
            return Predictions(task.predict(self.loaded, many, validate(task.Options, options)))

    def classify(self, text: str | Sequence[str], labels: Sequence[str] | None = None, **options: Any) -> Any:
        """The label of a text, or of each of several, by prompting a model that writes; it needs no training.

        Options as in `legato predict`: shots (a file, or a list of texts and labels), columns (of that file),
        template, normalize, calibrate.

        >>> model.classify("a gem of a film", ["good", "bad"], shots=[("what a bore", "bad")])      # doctest: +SKIP
        'good'
        """
        found = self.classifications([text] if isinstance(text, str) else text, labels=labels, **options)
        found.check("text")
        best = [prediction.text for prediction in found]
        return best[0] if isinstance(text, str) else best

    def classifications(self, texts: Sequence[str], **options: Any) -> Predictions:
        """`classify` with all labels' probabilities and its options; a text may have a problem instead."""
        return Predictions(self._prompter(options).predict(texts_of(texts)))

    def classify_file(
        self, source: str, columns: Sequence[str | int] | None = None, **options: Any
    ) -> dict[str, Any]:
        """How well prompting does on a file of texts and labels: accuracy and other figures of a classifier."""
        return self._prompter(options).score(source, columns)

    def _prompter(self, options: dict[str, Any]) -> Prompter:
        from legato.tasks.classification.prompting import Prompter, PromptOptions

        return Prompter(self.loaded, validate(PromptOptions, options))

    def _vectors(self, **how: Any) -> TextVectors:
        from legato.tasks.embedding.text_vectors import TextVectors

        return TextVectors.of(self.loaded, **how)

    def _search(
        self, prompts: list[list[int]], options: SearchOptions, on_token: Any, images: Sequence[Any]
    ) -> list[list[Hypothesis]]:
        max_length, limits = self.module.max_length, None
        model: Any = self.module
        if images and len(images) != len(prompts):
            raise LegatoError(f"there are {len(images)} pictures for {len(prompts)} prompts; give one for each")
        memory = self._seen(images, options) if images else None
        if max_length is not None and options.slide:
            model = Sliding(self.module, max_length, self.device)
        elif max_length is not None:
            limits = [self.limit_of(prompt, options) for prompt in prompts]
        constraint = constraint_of(self.loaded, options, limits or [options.max_tokens] * len(prompts))
        hypotheses = search(
            model,
            prompts,
            options,
            eos=None,
            stop_tokens=self.loaded.ends,
            limits=limits,
            memory=memory,
            text_of=self.tokenizer.decode,
            on_token=on_token,
            constraint=constraint,
        )
        check_followed(constraint)
        return hypotheses

    def _seen(self, images: Sequence[Any], options: SearchOptions) -> Any:
        """What the search needs of pictures."""
        from legato.tasks.visual_chat.picture_talk import look_at

        if options.slide:
            raise LegatoError("a context that slides forgets its picture; leave out --slide")
        return look_at(self.loaded, images, self.device)

    def limit_of(self, prompt: Sequence[int], options: SearchOptions) -> int:
        """The most tokens that can be written behind a prompt."""
        most = self.module.max_length  # of which the last one written need not be read
        return options.max_tokens if most is None else min(options.max_tokens, most - len(prompt) + 1)

    def finished(
        self, start: list[int], hypothesis: Hypothesis, options: SearchOptions, written: str | None = None
    ) -> Generated:
        """What a search found behind a prompt, as text: `written`, where it was decoded already."""
        written = decode_behind(self.tokenizer, start, hypothesis.tokens) if written is None else written
        text, _ = cut_at_stop(written, options.stop)
        return Generated(text, hypothesis.tokens, hypothesis.score, hypothesis.logprob, hypothesis.finished)

    def check_chats(self) -> None:
        """Refuse a model that is not talked to."""
        self.loaded.check_chats()

    @property
    def generates(self) -> bool:
        """Whether it continues texts."""
        return self.loaded.generates

    def check_generates(self) -> None:
        """Refuse a model that does not continue texts."""
        self.loaded.check_generates()


def _note(text: str) -> None:
    warn(text.removeprefix("note: "))
