"""Load tests of servers: requests, alternating servers, and the table of results."""
