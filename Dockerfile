# The server; models lie on a volume. It installs a wheel (`make wheels`) and needs no compiler.
#
#   docker build -t legato .
#   docker run -p 8000:8000 -e LEGATO_API_KEY=SECRET -v $PWD/runs:/models:ro legato chat=/models/chat
#
# For NVIDIA GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126, and `docker run --gpus all`.
FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt dist/*.whl /wheels/
# First the wheel from here and nothing else, so that no index can put another package in its place.
RUN pip install --no-cache-dir --no-index --no-deps --find-links /wheels legato-nn
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" --constraint /wheels/constraints.txt \
    "legato-nn[serve,vision,audio]"
RUN useradd --create-home legato
USER legato
ENV LEGATO_CACHE=/home/legato/.cache/legato
EXPOSE 8000
ENTRYPOINT ["legato", "serve", "--host", "0.0.0.0"]
