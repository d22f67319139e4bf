# One image for both: the gateway with an engine on the CPU, and, built with EXTRAS=[cuda], an engine on CUDA.
FROM python:3.12-slim AS build

# For pip: which extras of Wye, and further arguments such as an index that has CPU-only torch.
ARG EXTRAS=""
ARG PIP_ARGS=""

# Compiles the native CPU step; what runs needs no compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python -m venv /opt/wye
COPY constraints.txt pyproject.toml setup.py MANIFEST.in README.md ./
COPY engine engine
COPY extensions extensions
COPY gateway gateway
RUN /opt/wye/bin/pip install --no-cache-dir --constraint constraints.txt ${PIP_ARGS} ".${EXTRAS}"

FROM python:3.12-slim

RUN useradd --create-home --uid 10001 wye && install --directory --owner=wye /models
COPY --from=build /opt/wye /opt/wye
ENV PATH=/opt/wye/bin:$PATH WYE_HOME=/models OMP_WAIT_POLICY=passive PYTHONUNBUFFERED=1
USER wye
WORKDIR /home/wye
VOLUME /models
EXPOSE 8000
ENTRYPOINT ["wye"]
CMD ["serve", "smollm2-135m", "--host", "0.0.0.0"]
