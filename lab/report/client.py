"""The manager of a kernel, and the one client of all its notebooks, which notices every answer."""

from __future__ import annotations

from typing import Any

import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.manager import AsyncKernelManager
from traitlets import Type


class Channel(AsyncZMQSocketChannel):
    """Looks for a message whenever it has sent one.

    ZeroMQ signals once that a message has arrived, and sending another may consume the signal:
    nbclient sends the state of an output widget while it waits for the end of the widget's cell.
    """

    def send(self, msg: dict[str, Any]) -> None:
        """Send a message; one that has arrived wakes whoever waits for it."""
        super().send(msg)
        self.socket.get(zmq.EVENTS)


class Client(AsyncKernelClient):
    """A client for several notebooks, each of which starts its channels."""

    shell_channel_class = Type(Channel)

    def start_channels(self, *channels: Any, **settings: Any) -> None:
        """Start the channels, unless they are running."""
        if not self.channels_running:
            super().start_channels(*channels, **settings)


class Manager(AsyncKernelManager):
    """Papermill requests and starts a client for each notebook, here the same one."""

    the_client: Any = None

    def client(self, **settings: Any) -> Any:
        """The one client."""
        self.the_client = self.the_client or super().client(**settings)
        return self.the_client
