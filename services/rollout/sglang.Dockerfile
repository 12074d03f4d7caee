# The worker beside SGLang in SGLang's own image. Unverified: no GPU has run it.
ARG SGLANG_IMAGE=lmsysorg/sglang:v0.5.21

FROM ${SGLANG_IMAGE} AS needs
WORKDIR /needs
COPY pyproject.toml deploy/image/needs.py ./
RUN python3 needs.py

# An environment of its own without torch, for the pins of the two do not meet.
FROM ${SGLANG_IMAGE}
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/var/cache/gradbus
RUN groupadd --gid 10001 gradbus \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/cache/gradbus --shell /usr/sbin/nologin gradbus \
    && install -d -o 10001 -g 10001 -m 0700 /run/gradbus /var/cache/gradbus \
    && python3 -m venv /opt/gradbus
WORKDIR /build
COPY requirements/demo.txt ./
COPY --from=needs /needs/core.txt /needs/telemetry.txt /needs/sglang.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/gradbus/bin/pip install --quiet --disable-pip-version-check -r core.txt -r telemetry.txt -r sglang.txt -c demo.txt
COPY libs/gradbus /app/gradbus
COPY kernels/gradbus_kernels /app/gradbus_kernels
COPY services/rollout/gradbus_rollout /app/gradbus_rollout
COPY deploy/image/ready.py /opt/ready.py
ENV GRADBUS_SGLANG_PYTHON=/usr/bin/python3
WORKDIR /
USER 10001:10001
ENTRYPOINT []
CMD ["/opt/gradbus/bin/python", "-m", "gradbus_rollout"]
