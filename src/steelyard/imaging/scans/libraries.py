"""Settings of the libraries that read and register scans, for every process that uses them."""

import logging

import SimpleITK as sitk


def quiet_libraries(threads: int) -> None:
    """Limit the threads of SimpleITK, and keep libraries from printing over the progress bar."""
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)
