"""Published files of data sets: where they come from, how large they are, what they hash to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """A file as it was published."""

    name: str  # for messages
    url: str
    file: str  # its name in the cache
    size: int  # bytes
    sha256: str


SHAKESPEARE = Download(
    name="Tiny Shakespeare",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    file="tinyshakespeare.txt",
    size=1_115_394,
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
_AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
AG_NEWS_TRAIN = Download(
    name="AG News (train)",
    url=f"{_AG_NEWS}/train.csv",
    file="ag_news_train.csv",
    size=29_470_338,
    sha256="76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
)
AG_NEWS_TEST = Download(
    name="AG News (test)",
    url=f"{_AG_NEWS}/test.csv",
    file="ag_news_test.csv",
    size=1_857_427,
    sha256="521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
)
IMDB = Download(
    name="IMDB",
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    file="aclImdb_v1.tar.gz",
    size=84_125_825,
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
# As mirrored for torchvision, as the site of LeCun, Cortes and Burges no longer serves them.
# torchvision.datasets.MNIST checks only MD5, and takes no lock if several ranks need the files.
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
_MNIST_FILES = """
train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
"""
MNIST = tuple(
    Download(f"MNIST ({file})", f"{_MNIST_URL}/{file}", f"mnist-{file}", int(size), sha256)
    for file, size, sha256 in map(str.split, _MNIST_FILES.split("\n")[1:-1])
)
# By the kind of data that needs them; the others need none.
DOWNLOADS = {
    "shakespeare": (SHAKESPEARE,),
    "ag_news": (AG_NEWS_TRAIN, AG_NEWS_TEST),
    "imdb": (IMDB,),
    "mnist": MNIST,
}
