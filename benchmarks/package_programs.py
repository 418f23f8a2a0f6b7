"""Programs that use NumPy through packages from PyPI: `package_programs.py NAME` runs one and prints its seconds.

Seconds are processor time of all threads, without imports and without Numba's compilation. With `--wait` it prints
`ready` after them, and begins when its standard input ends. All data is generated from fixed seeds. `PACKAGES` are the
requirements.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

PACKAGES = (
    "numpy", "pandas", "scikit-learn", "scipy", "statsmodels", "scikit-image", "xgboost", "networkx", "umap-learn",
    "librosa",
)  # fmt: skip

Program = Callable[[], Callable[[], object]]  # imports its packages and returns the function that is timed


def numpy_append() -> Callable[[], object]:
    import numpy as np

    def program() -> object:
        array, part = np.empty(0), np.ones(10_000)
        for _ in range(300):
            array = np.append(array, part)
        return array

    return program


def numpy_growing_list_of_arrays() -> Callable[[], object]:
    import numpy as np

    def program() -> object:
        kept = []
        for step in range(400):
            kept.append(np.full(50_000 + 100 * step, 1.0))
            if step % 3 == 0:
                kept.pop(len(kept) // 2)
        return np.concatenate(kept)

    return program


def numpy_linear_algebra() -> Callable[[], object]:
    import numpy as np

    def program() -> object:
        matrix = np.random.default_rng(0).standard_normal((900, 900))
        values = np.linalg.svd(matrix, compute_uv=False)
        return values.sum() + np.linalg.eigvalsh(matrix @ matrix.T).sum() + np.linalg.inv(matrix).sum()

    return program


def pandas_concat() -> Callable[[], object]:
    import numpy as np
    import pandas as pd

    def program() -> object:
        part = pd.DataFrame(np.ones((2_000, 8)))
        frame = part
        for _ in range(200):
            frame = pd.concat([frame, part], ignore_index=True)
        return frame.sum().sum()

    return program


def pandas_group_and_merge() -> Callable[[], object]:
    import numpy as np
    import pandas as pd

    def program() -> object:
        rng = np.random.default_rng(0)
        left = pd.DataFrame({"key": rng.integers(0, 20_000, 1_000_000), "value": rng.random(1_000_000)})
        right = left.groupby("key").agg(["mean", "std", "max"]).droplevel(0, axis=1)
        joined = left.merge(right, left_on="key", right_index=True)
        return joined.sort_values(["key", "value"]).pivot_table(index="key", values="value", aggfunc="median")

    return program


def pandas_time_series() -> Callable[[], object]:
    import numpy as np
    import pandas as pd

    def program() -> object:
        index = pd.date_range("2020-01-01", periods=600_000, freq="min")
        series = pd.Series(np.random.default_rng(0).standard_normal(len(index)).cumsum(), index)
        hours = series.resample("h").agg(["first", "max", "min", "last"])
        return hours, series.rolling("1D").mean(), series.ewm(span=100).std(), series.rolling(500).quantile(0.9)

    return program


def pandas_csv() -> Callable[[], object]:
    import io

    import numpy as np
    import pandas as pd

    def program() -> object:
        frame = pd.DataFrame(np.random.default_rng(0).standard_normal((60_000, 10)))
        text = frame.to_csv(index=False)
        return sum(pd.read_csv(io.StringIO(text)).sum().sum() for _ in range(3))

    return program


def scipy_spectrogram() -> Callable[[], object]:
    import numpy as np
    from scipy import signal

    def program() -> object:
        samples = np.random.default_rng(0).standard_normal(4_000_000)
        filtered = signal.sosfiltfilt(signal.butter(8, 0.2, output="sos"), samples)
        _, _, power = signal.spectrogram(filtered, nperseg=1024, noverlap=512)
        return power.sum(), signal.resample(filtered, 1_000_000)

    return program


def scipy_sparse_eigenvalues() -> Callable[[], object]:
    import numpy as np
    from scipy import sparse
    from scipy.sparse import linalg

    def program() -> object:
        side = 250
        line = sparse.diags_array([-1, 2, -1], offsets=[-1, 0, 1], shape=(side, side))
        plane = sparse.csr_array(sparse.kron(line, sparse.eye_array(side)) + sparse.kron(sparse.eye_array(side), line))
        return linalg.eigsh(plane, k=6, sigma=0.0)[0], linalg.spsolve(plane, np.ones(plane.shape[0]))

    return program


def scipy_images() -> Callable[[], object]:
    import numpy as np
    from scipy import ndimage

    def program() -> object:
        volume = np.random.default_rng(0).random((160, 200, 200))
        smooth = ndimage.gaussian_filter(volume, 2.0)
        labels, count = ndimage.label(smooth > smooth.mean())
        return ndimage.sum_labels(volume, labels, range(count)), ndimage.median_filter(volume[:40], 3)

    return program


def scipy_optimize_and_integrate() -> Callable[[], object]:
    import numpy as np
    from scipy import integrate, optimize

    def program() -> object:
        start = np.random.default_rng(0).random(400) * 2
        found = optimize.minimize(optimize.rosen, start, jac=optimize.rosen_der, method="L-BFGS-B")
        heat = integrate.solve_ivp(
            lambda _t, u: np.gradient(np.gradient(u)), (0, 40), np.sin(np.linspace(0, 9, 30_000)), method="RK45"
        )
        return found.fun, heat.y[-1]

    return program


def scikit_learn_pca() -> Callable[[], object]:
    import numpy as np
    from sklearn.decomposition import PCA

    def program() -> object:
        samples = np.random.default_rng(0).standard_normal((40_000, 200))
        return PCA(40, svd_solver="randomized", random_state=0).fit_transform(samples)

    return program


def scikit_learn_forest() -> Callable[[], object]:
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    def program() -> object:
        samples, labels = make_classification(8_000, 40, random_state=0)
        return RandomForestClassifier(50, random_state=0).fit(samples, labels).score(samples, labels)

    return program


def scikit_learn_boosting() -> Callable[[], object]:
    from sklearn.datasets import make_regression
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import cross_val_score

    def program() -> object:
        samples, target = make_regression(30_000, 30, random_state=0)
        return cross_val_score(HistGradientBoostingRegressor(max_iter=40), samples, target, cv=3)

    return program


def scikit_learn_clusters() -> Callable[[], object]:
    from sklearn.cluster import DBSCAN, KMeans
    from sklearn.datasets import make_blobs

    def program() -> object:
        samples, _ = make_blobs(60_000, 12, centers=30, random_state=0)
        return KMeans(30, n_init=4, random_state=0).fit(samples).inertia_, DBSCAN(3.0).fit(samples[:8_000]).labels_

    return program


def scikit_learn_text() -> Callable[[], object]:
    import random

    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    def program() -> object:
        words = [f"word{number}" for number in range(20_000)]
        draw = random.Random(0)
        texts = [" ".join(draw.choices(words, k=120)) for _ in range(6_000)]
        return TruncatedSVD(60, random_state=0).fit_transform(TfidfVectorizer().fit_transform(texts))

    return program


def scikit_learn_gaussian_process() -> Callable[[], object]:
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor

    def program() -> object:
        samples = np.random.default_rng(0).random((700, 4))
        model = GaussianProcessRegressor(alpha=0.1, n_restarts_optimizer=1, random_state=0)
        return model.fit(samples, samples.sum(axis=1)).predict(samples, return_cov=True)

    return program


def statsmodels_regression() -> Callable[[], object]:
    import numpy as np
    import statsmodels.api as sm

    def program() -> object:
        rng = np.random.default_rng(0)
        samples = sm.add_constant(rng.standard_normal((200_000, 20)))
        linear = sm.OLS(samples.sum(axis=1) + rng.standard_normal(200_000), samples).fit(cov_type="HC1")
        return linear.params, sm.Logit(rng.random(50_000) > 0.4, samples[:50_000]).fit(disp=0).params

    return program


def statsmodels_time_series() -> Callable[[], object]:
    import numpy as np
    from statsmodels.tsa.arima.model import ARIMA
    from statsmodels.tsa.seasonal import STL

    def program() -> object:
        series = np.random.default_rng(0).standard_normal(20_000).cumsum()
        return ARIMA(series[:3_000], order=(2, 1, 1)).fit().aic, STL(series, period=24).fit().trend

    return program


def scikit_image_segmentation() -> Callable[[], object]:
    import numpy as np
    from skimage import filters, measure, segmentation

    def program() -> object:
        image = filters.gaussian(np.random.default_rng(0).random((700, 700, 3)), 3, channel_axis=2)
        labels = segmentation.slic(image, n_segments=500, start_label=1)
        return measure.regionprops_table(labels, image, properties=("area", "centroid", "mean_intensity"))

    return program


def scikit_image_restoration() -> Callable[[], object]:
    import numpy as np
    from skimage import restoration, transform

    def program() -> object:
        image = np.random.default_rng(0).random((900, 900))
        smooth = restoration.denoise_tv_chambolle(image, max_num_iter=40)
        return transform.radon(transform.rescale(smooth, 0.25), range(0, 180, 2)), transform.rotate(smooth, 30)

    return program


def xgboost_training() -> Callable[[], object]:
    import numpy as np
    import xgboost

    def program() -> object:
        rng = np.random.default_rng(0)
        samples = rng.standard_normal((60_000, 40))
        data = xgboost.DMatrix(samples, (samples[:, :5].sum(axis=1) > 0).astype(float))
        return xgboost.train({"objective": "binary:logistic", "nthread": 2}, data, 40).predict(data)

    return program


def networkx_graph() -> Callable[[], object]:
    import networkx as nx

    def program() -> object:
        graph = nx.barabasi_albert_graph(12_000, 5, seed=0)
        small = nx.gnp_random_graph(1_200, 0.01, seed=0)
        return nx.pagerank(graph), nx.to_numpy_array(small) @ nx.to_numpy_array(small), nx.spectral_layout(small)

    return program


def umap_embedding() -> Callable[[], object]:
    import numpy as np
    import umap

    def program(count: int = 3_000) -> object:
        samples = np.random.default_rng(0).random((count, 30))
        return umap.UMAP(n_neighbors=10, n_epochs=100, random_state=0).fit_transform(samples)

    program(50)  # compiles
    return program


def librosa_features() -> Callable[[], object]:
    import librosa
    import numpy as np

    def program(duration: int = 60) -> object:
        samples = librosa.chirp(fmin=100, fmax=8_000, sr=22_050, duration=duration)
        spectrum = np.abs(librosa.stft(samples))
        harmonic, percussive = librosa.decompose.hpss(spectrum)
        return librosa.feature.mfcc(y=samples), librosa.amplitude_to_db(harmonic), percussive.sum()

    program(1)  # compiles
    return program


PROGRAMS: dict[str, Program] = {program.__name__: program for program in (
    numpy_append, numpy_growing_list_of_arrays, numpy_linear_algebra, pandas_concat, pandas_group_and_merge,
    pandas_time_series, pandas_csv, scipy_spectrogram, scipy_sparse_eigenvalues, scipy_images,
    scipy_optimize_and_integrate, scikit_learn_pca, scikit_learn_forest, scikit_learn_boosting, scikit_learn_clusters,
    scikit_learn_text, scikit_learn_gaussian_process, statsmodels_regression, statsmodels_time_series,
    scikit_image_segmentation, scikit_image_restoration, xgboost_training, networkx_graph, umap_embedding,
    librosa_features,
)}  # fmt: skip

if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    timed = PROGRAMS[sys.argv[1]]()
    if "--wait" in sys.argv:
        print("ready", flush=True)
        sys.stdin.read()
    began = time.process_time()
    timed()
    print("seconds", time.process_time() - began)
