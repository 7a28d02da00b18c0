"""Frames on the links of a fabric that is up, as a file that Wireshark and scapy read."""
