# A client of a real federation. Untried: no Docker daemon was at hand when it was written.
# Build and run it as docs/how-to/install.md shows. Keys, data and state are mounted, never part of the image.
FROM python:3.11-slim AS build
ARG TORCH_INDEX
RUN test -n "$TORCH_INDEX" || { echo "set --build-arg TORCH_INDEX to the address of PyTorch's CPU builds"; exit 1; }
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY configs configs
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --constraint constraints.txt --index-url "$TORCH_INDEX" torch \
    && /venv/bin/pip install --no-cache-dir --constraint constraints.txt ".[flower]"

FROM python:3.11-slim
COPY --from=build /venv /venv
RUN useradd --uid 10001 --create-home tinyproto && install --directory --owner=tinyproto /state
# USER and HOME also serve a user without an entry in /etc/passwd, as with `docker run --user`.
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 USER=tinyproto HOME=/tmp
USER tinyproto
WORKDIR /state
ENTRYPOINT ["tinyproto", "join", "--keys", "/keys", "--folder", "/state"]
CMD ["--help"]
