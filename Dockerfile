# dross on a CPU.
#
#   docker build -t dross .
#   docker run --rm dross                                          the demo
#   docker run --rm -v "$PWD":/data dross clean people.csv --label income
#   docker run --rm -it -p 8000:8000 -v "$PWD":/data dross review runs/people --host 0.0.0.0 --port 8000 --no-browser
#
# TORCH_INDEX names an index of CPU builds of torch. Without it pip takes the usual build, which on
# Linux brings several gigabytes for GPUs.
FROM python:3.12-slim AS build
COPY . /source
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist /source

FROM python:3.12-slim
ARG TORCH_INDEX=""
COPY --from=build /dist /dist
COPY constraints.txt /dist/constraints.txt
RUN if [ -n "$TORCH_INDEX" ]; then pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' /dist/constraints.txt)"; fi \
    && pip install --no-cache-dir --constraint /dist/constraints.txt /dist/*.whl \
    && rm -r /dist \
    && useradd --create-home --uid 1000 dross \
    && mkdir /data && chown dross /data
USER dross
WORKDIR /data
ENTRYPOINT ["dross"]
CMD ["demo"]
