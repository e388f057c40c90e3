# The GPU image: docker build -f tools/containers/gpu.Dockerfile -t timetotrain-gpu .
# CUDA 12: its nvcc is the last that compiles for a V100. Only the build needs it.
FROM nvidia/cuda:12.6.0-devel-ubuntu22.04 AS cuda

FROM debian:bookworm-20250520-slim
WORKDIR /opt/timetotrain
COPY . .
RUN --mount=type=bind,from=cuda,source=/usr/local/cuda-12.6,target=/usr/local/cuda \
    tools/containers/install.sh gpu
ENV PATH=/opt/venv/bin:$PATH PYTHON=/opt/venv/bin/python
# Which of the host's driver libraries NVIDIA's container runtime brings in.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --uid 1000 --create-home runner
USER 1000
CMD ["python", "-m", "timetotrain", "--help"]
