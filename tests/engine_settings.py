"""Environment and flags with which every engine in the tests starts, the pair's and the oracle's.

The machines that run the tests have few cores and no GPU; parity wants both engines alike.
"""

ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    # The engines of one test share the cores, so none of them may claim all of them, or the same.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
}

ENGINE_FLAGS = (
    # "auto" would take a float32 checkpoint down to bfloat16.
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=1024",
    "--max-num-seqs=8",
    # On the CPU build: the share of the host's memory that must be free at start.
    "--gpu-memory-utilization=0.3",
)

# Where it is looked whether memory grows, the caches are such as are soon used in full. Memory of
# blocks is taken when they are first written to.
SMALL_CACHES_FLAGS = (
    "--mm-processor-cache-gb=0.001",
    "--num-gpu-blocks-override=512",
    "--held-items-bytes=200000",
)
# The CPU build's matrix products are compiled for each shape, and 1024 of them are kept otherwise.
SMALL_CACHES_ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}
