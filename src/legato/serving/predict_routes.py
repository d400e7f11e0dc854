"""`POST /v1/predict`: whatever a model's task does, over HTTP, with the answers of `legato predict --json`.

Annotations are evaluated here, unlike elsewhere: the type of a body is made of the models that are served.
"""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from legato.serving.app import json_response
from legato.serving.models import ServedModels
from legato.serving.predict_types import Predictions, predictable, request_of
from legato.serving.transport.bodies import BoundedRoute
from legato.serving.transport.departures import departure


def predict_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=BoundedRoute)
    body_type: Any = request_of(models)

    @router.post("/predict", response_model=Predictions)
    async def predict(body: body_type, request: Request) -> Response:
        """Translate, classify, tag, answer, caption, detect, …: a prediction for each input."""
        content = body.root
        target = predictable(models[content.model], getattr(content, "task", None))
        options, read = target.options(content), target.kind.read
        inputs = await asyncio.to_thread(
            lambda: [read(each, f"inputs.{number}") for number, each in enumerate(content.inputs)]
        )
        predictions = await target.served.predict(inputs, options, departure(request), target.member)
        about = {"object": "list", "model": target.served.name, "task": target.task.name}
        return json_response({**about, "predictions": predictions})

    return router
