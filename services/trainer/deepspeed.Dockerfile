# The trainer as the ranks of torchrun, with DeepSpeed. Unverified: no GPU has run it.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS needs
WORKDIR /needs
COPY pyproject.toml deploy/image/needs.py ./
RUN python needs.py

FROM ${PYTHON_IMAGE}
ENV PATH=/opt/gradbus/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/var/cache/gradbus
# DeepSpeed and Triton compile parts of theirs at first use.
# Debian keeps only the newest build of a package, so a version cannot be named.
# hadolint ignore=DL3008
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 gradbus \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/cache/gradbus --shell /usr/sbin/nologin gradbus \
    && install -d -o 10001 -g 10001 -m 0700 /run/gradbus /var/cache/gradbus \
    && python -m venv --without-pip /opt/gradbus
WORKDIR /build
COPY requirements/demo.txt requirements/torch.txt requirements/deepspeed.txt ./
COPY --from=needs /needs/core.txt /needs/telemetry.txt /needs/trainer.txt /needs/families.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/gradbus/bin/python install --quiet --disable-pip-version-check -r torch.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/gradbus/bin/python install --quiet --disable-pip-version-check -r core.txt -r telemetry.txt -r trainer.txt -c demo.txt \
    && pip --python /opt/gradbus/bin/python install --quiet --disable-pip-version-check -r families.txt -c demo.txt \
    && pip --python /opt/gradbus/bin/python install --quiet --disable-pip-version-check -r deepspeed.txt
COPY libs/gradbus /app/gradbus
COPY kernels/gradbus_kernels /app/gradbus_kernels
COPY services/trainer/gradbus_trainer /app/gradbus_trainer
COPY deploy/image/ready.py /opt/ready.py
WORKDIR /
USER 10001:10001
CMD ["sh", "-c", "exec torchrun --standalone --nproc-per-node ${GPUS:-gpu} -m gradbus_trainer"]
