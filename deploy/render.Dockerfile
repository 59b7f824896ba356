# The render service: docker build -f deploy/render.Dockerfile .
FROM python:3.11-slim

# vLLM's CPU build links to it.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY requirements.lock ./
# torch's wheels without CUDA are not on PyPI: name PyTorch's index of CPU wheels in this argument,
# or in a pip.conf of the base image.
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --no-deps --requirement requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY shared_protocol ./shared_protocol
COPY generate_service ./generate_service
COPY render_service ./render_service
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

RUN useradd --create-home tandem
USER tandem
# Not /app: the service is to run as it was installed.
WORKDIR /home/tandem

EXPOSE 8000
ENTRYPOINT ["python3", "-m", "render_service"]
