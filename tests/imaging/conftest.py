import pytest
import SimpleITK as sitk


@pytest.fixture(autouse=True)
def _one_itk_thread():
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
