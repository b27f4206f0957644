// Lock libraries for Go, unmodified, against a cluster of Redfence. ../README.md is the contract with the driver.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

var libraries = []*library{&goRedis, &redsyncOne, &redsyncMasters, &bsmRedislock, &rueidisTracking, &rueidisPolling}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "list" {
		for _, lib := range libraries {
			if lib.masters {
				fmt.Println(lib.id + "\tredlock")
			} else {
				fmt.Println(lib.id)
			}
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "check" {
		for _, lib := range libraries {
			if lib.id == os.Args[2] {
				runAll(lib)
				return
			}
		}
	}
	fmt.Fprintln(os.Stderr, "usage: interop list | check <id>")
	os.Exit(2)
}

func runAll(lib *library) {
	nodes := strings.Split(os.Getenv("INTEROP_NODES"), ",")
	t := &trial{lib: lib, nodes: nodes, control: &control{os.Getenv("INTEROP_CONTROL")}, ask: newGoRedis(nodes[0])}
	if masters := os.Getenv("INTEROP_REDLOCK"); masters != "" {
		t.masters = strings.Split(masters, ",")
	}
	for _, group := range [][]check{commonChecks, lib.own, failoverChecks} {
		for _, c := range group {
			run(t, c)
		}
	}
}

func run(t *trial, c check) {
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Second)
	defer cancel()
	start := time.Now()
	err := c.run(ctx, t)
	line := map[string]any{
		"library": t.lib.name, "version": moduleVersion(t.lib.module), "variant": t.lib.variant,
		"check": c.name, "ok": err == nil, "detail": fmt.Sprintf("%d ms", time.Since(start).Milliseconds()),
	}
	if err != nil {
		line["detail"] = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

// moduleVersion is the version linked into this program.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == path {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "?"
}
