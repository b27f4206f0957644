package main

// The driver's control port: kills the leader, starts it again. See ../README.md.

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"time"
)

type control struct{ addr string }

func (c *control) order(line string) ([]string, error) {
	conn, err := net.DialTimeout("tcp", c.addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(40 * time.Second))
	if _, err := fmt.Fprintln(conn, line); err != nil {
		return nil, err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return nil, err
	}
	words := strings.Fields(answer)
	if len(words) == 0 || words[0] != "ok" {
		return nil, fmt.Errorf("%s: %s", line, answer)
	}
	return words[1:], nil
}
