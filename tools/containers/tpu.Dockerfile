# The TPU image: docker build -f tools/containers/tpu.Dockerfile -t timetotrain-tpu .
FROM debian:bookworm-20250520-slim
WORKDIR /opt/timetotrain
COPY . .
RUN tools/containers/install.sh tpu
ENV PATH=/opt/venv/bin:$PATH PYTHON=/opt/venv/bin/python
CMD ["python", "-m", "timetotrain", "--help"]
