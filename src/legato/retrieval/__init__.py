"""Retrieval: documents to passages, an index of their words and vectors, answers with their sources.

    index = Index.create("runs/index", encoder)
    index.update(["docs/"])
    for hit in index.search("How is it installed?"):
        print(hit.score, hit.passage.source, hit.passage.text)

`legato.index` and `legato.ask` bind models to it. Nothing here loads a model: an encoder, a re-ranker and what
answers are given by whoever has them (models.py).
"""
