# The CPU image: docker build -f tools/containers/cpu.Dockerfile -t timetotrain-cpu .
FROM debian:bookworm-20250520-slim
WORKDIR /opt/timetotrain
COPY . .
RUN tools/containers/install.sh cpu
ENV PATH=/opt/venv/bin:$PATH PYTHON=/opt/venv/bin/python
RUN useradd --uid 1000 --create-home runner
USER 1000
CMD ["python", "-m", "timetotrain", "--help"]
