"""The fault programs with rules, and frames for them."""

import numpy as np
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from testbed.faults.attach import LINK
from testbed.faults.delay_header import link_index
from testbed.faults.packet import KINDS
from testbed.faults.rule_table import compile_rules
from testbed.kernel import BpfObject
from testbed.kernel.abi import Struct
from testbed.plan import plan_fabric
from testbed.protocol.scapy_layers import RingHeader
from testbed.protocol.wire import PORT
from tests.support.rules import parse_rule

PLAN = plan_fabric(hosts=4)


LOOPBACK = 1


class Programs:
    """The programs with rules, on a switch whose ports are all somewhere else than where frames
    come from.
    """

    def __init__(self, *texts, seed=1, trace=False):
        self.table = compile_rules([parse_rule(text) for text in texts], PLAN, seed)
        sizes = {"quantiles": max(1, len(self.table.quantiles)), "fired": max(1, len(texts)) * 1024}
        self.object = BpfObject("impair", max_entries=sizes)
        self.maps = self.object.maps
        self.maps["rules"].update(0, self.table.pack(trace))
        for index, quantiles in enumerate(self.table.pack_quantiles()):
            self.maps["quantiles"].update(index, quantiles)
        self.maps["ports"].update(2, LOOPBACK)
        self.maps["entrance"].update(0, LOOPBACK)
        for host in PLAN.hosts:
            mac = bytes.fromhex(host.mac.replace(":", ""))
            self.maps["hosts"].update(mac, host.rank)
            self.maps["forwarding"].update(
                mac, bytes(Struct("switch_destination", port=2, ifindex=LOOPBACK + 1))
            )

    def run(self, program, data):
        run = self.object.programs[program].test_run(bytes(data))
        return run.retval, run.data

    def link(self, sender=0, receiver=1):
        return self.maps["links"].view(LINK)[link_index(sender, receiver), 0]

    def fired(self, rule, sender=0, receiver=1):
        return int(
            np.frombuffer(
                self.maps["fired"].lookup(rule * 1024 + link_index(sender, receiver)), np.uint64
            ).sum()
        )


def between(sender=0, receiver=1):
    a, b = PLAN.hosts[sender], PLAN.hosts[receiver]
    return Ether(src=a.mac, dst=b.mac) / IP(src=a.ip, dst=b.ip)


def ring(sender=0, receiver=1, size=128, **fields):
    header = RingHeader(**{"kind": KINDS["reduce"], "length": size} | fields)
    return bytes(
        between(sender, receiver)
        / UDP(sport=PORT, dport=PORT, chksum=0)
        / header
        / Raw(bytes(size))
    )
