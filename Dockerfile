# The commands that need no torch: lint, plan, env, diagnose, ckpt, explain.
#   docker build -t holdfast . && docker run --rm -v "$PWD:/work" holdfast diagnose job.log
# For `holdfast run`, install holdfast into the image that has your torch.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY release release
COPY src src
RUN python -m venv /opt/holdfast && /opt/holdfast/bin/pip install --no-cache-dir .

FROM python:3.12-slim
COPY --from=build /opt/holdfast /opt/holdfast
RUN useradd --create-home --uid 1000 holdfast
ENV PATH=/opt/holdfast/bin:$PATH
USER 1000
WORKDIR /work
ENTRYPOINT ["holdfast"]
CMD ["--help"]
