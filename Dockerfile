# An image with smi, for a CPU or for GPUs of NVIDIA:
#
#   docker build -t smi:cpu .
#   docker build -t smi:cuda --build-arg TORCH=cu128 .
#   docker run --rm smi:cpu smi demo
#   docker run --rm --gpus all --shm-size 16g -v ~/photos:/photos -v ~/runs:/runs smi:cuda \
#     smi pretrain --data /photos --out /runs/mine
FROM python:3.12-slim

# cpu, or a version of CUDA as PyTorch names its wheels. They bring CUDA; the host has the driver.
ARG TORCH=cpu

# The kernel for views is compiled while smi is installed.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/${TORCH} torch

WORKDIR /opt/smi
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir .

ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
CMD ["smi", "--help"]
