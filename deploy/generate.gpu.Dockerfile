# The generate service on a GPU: docker build -f deploy/generate.gpu.Dockerfile .
FROM vllm/vllm-openai:v0.32.0

# vLLM's image has what this distribution depends on, and need not have what the extra `gpu` in
# pyproject.toml adds: that comes in the versions of requirements.lock.
WORKDIR /app
COPY requirements.lock ./
RUN python3 -m pip install --no-cache-dir --no-deps --constraint requirements.lock \
        av cffi docopt num2words pycparser scipy soundfile soxr timm

COPY pyproject.toml README.md LICENSE ./
COPY shared_protocol ./shared_protocol
COPY generate_service ./generate_service
COPY render_service ./render_service
RUN python3 -m pip install --no-cache-dir --no-deps .

# Not /app: the service is to run as it was installed.
WORKDIR /

EXPOSE 8100
# vLLM's image would start its own server.
ENTRYPOINT ["python3", "-m", "generate_service"]
