"""The services' own lines survive what vLLM's imports do to the root logger."""

import subprocess
import sys

CODE = """
import logging
from shared_protocol.startup import service_log, vllm_cpu
vllm_cpu.prepare_environment()
service_log.set_up_log()
import model_hosting_container_standards.sagemaker
logging.getLogger("render_service.replicas").info("still said")
"""


def test_own_lines_are_logged_after_vllm_is_imported() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert "INFO" in run.stderr
    assert "still said" in run.stderr


def test_the_level_is_that_of_the_flag() -> None:
    code = (
        CODE
        + """
service_log.set_level("WARNING")
logging.getLogger("generate_service").info("unsaid")
logging.getLogger("generate_service").warning("warned of")
"""
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "unsaid" not in run.stderr
    assert "warned of" in run.stderr


def test_the_version_is_that_of_the_distribution() -> None:
    from shared_protocol.startup.service_log import own_version

    assert own_version().count(".") == 2
