package main

// One library on trial: its clients, names of its own, and what the server says about a lock.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

type trial struct {
	lib     *library
	nodes   []string
	masters []string // the Redlock listeners; empty where there are none
	control *control
	ask     *redis.Client // for LOCK.* commands
}

// open connects the n-th client: each to a node of its own in turn, or to all masters at once.
func (t *trial) open(n int, ttl time.Duration) (locker, error) {
	return t.openAt(t.nodes[n%len(t.nodes)], ttl)
}

// openAt connects a client to this node, or to all masters at once.
func (t *trial) openAt(node string, ttl time.Duration) (locker, error) {
	if t.lib.masters {
		return t.lib.open(t.masters, ttl)
	}
	return t.lib.open([]string{node}, ttl)
}

func (t *trial) name(what string) string {
	return fmt.Sprintf("%s:%s", t.lib.id, what)
}

type lockInfo struct {
	state, owner string
	fence        int64
}

func (t *trial) info(ctx context.Context, key string) (lockInfo, error) {
	reply, err := t.ask.Do(ctx, "LOCK.INFO", key).Result()
	if err != nil {
		return lockInfo{}, fmt.Errorf("LOCK.INFO: %w", err)
	}
	fields, ok := reply.(map[any]any)
	if !ok {
		return lockInfo{}, fmt.Errorf("LOCK.INFO gave %v", reply)
	}
	state, _ := fields["state"].(string)
	owner, _ := fields["owner"].(string)
	fence, _ := fields["fence"].(int64)
	return lockInfo{state, owner, fence}, nil
}

// lockAcquire gives the fence, or 0 where the lock is taken.
func (t *trial) lockAcquire(ctx context.Context, key string, ttl, wait time.Duration) (int64, error) {
	reply, err := t.ask.Do(ctx, "LOCK.ACQUIRE", key, ttl.Milliseconds(), "WAIT", wait.Milliseconds()).Slice()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("LOCK.ACQUIRE: %w", err)
	}
	return reply[0].(int64), nil
}

func (t *trial) lockRelease(ctx context.Context, key string, fence int64) error {
	reply, err := t.ask.Do(ctx, "LOCK.RELEASE", key, fence).Slice()
	if err != nil {
		return fmt.Errorf("LOCK.RELEASE: %w", err)
	}
	if reply[0] != int64(1) {
		return fmt.Errorf("LOCK.RELEASE gave %v", reply)
	}
	return nil
}

func (t *trial) untilFree(ctx context.Context, key string, limit time.Duration) error {
	return eventually(limit, "the lock is free", func() (bool, error) {
		info, err := t.info(ctx, key)
		return info.state == "free", err
	})
}

func eventually(limit time.Duration, what string, holds func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	for {
		ok, err := holds()
		if err != nil || ok {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
