package main

// go-redis itself, with the lock its users write: SET NX PX, and scripts that compare before they touch.

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var compareAndDelete = redis.NewScript(
	`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`)
var compareAndExpire = redis.NewScript(
	`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("pexpire", KEYS[1], ARGV[2]) else return 0 end`)

var goRedis = library{
	id:     "go-redis",
	name:   "go-redis",
	module: "github.com/redis/go-redis/v9",
	open: func(addrs []string, ttl time.Duration) (locker, error) {
		return &goRedisLocker{newGoRedis(addrs[0]), ttl}, nil
	},
	keys: plainKey,
	own: []check{
		{"pipeline", goRedisPipeline},
		{"multi/exec with watch", goRedisTransaction},
		{"pub/sub", goRedisPubSub},
	},
}

func newGoRedis(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: 6 * time.Second})
}

type goRedisLocker struct {
	client *redis.Client
	ttl    time.Duration
}

type goRedisHeld struct {
	*goRedisLocker
	key, token string
}

func (l *goRedisLocker) try(ctx context.Context, name string) (held, error) {
	token := rand.Text()
	err := l.client.SetArgs(ctx, name, token, redis.SetArgs{Mode: "NX", TTL: l.ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return nil, errTaken
	}
	if err != nil {
		return nil, err
	}
	return &goRedisHeld{l, name, token}, nil
}

func (l *goRedisLocker) wait(ctx context.Context, name string) (held, error) {
	for {
		h, err := l.try(ctx, name)
		if !errors.Is(err, errTaken) {
			return h, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (l *goRedisLocker) close() { _ = l.client.Close() }

func (h *goRedisHeld) extend(ctx context.Context) error {
	return oneOrNotHeld(compareAndExpire.Run(ctx, h.client, []string{h.key}, h.token, h.ttl.Milliseconds()))
}

func (h *goRedisHeld) release(ctx context.Context) error {
	return oneOrNotHeld(compareAndDelete.Run(ctx, h.client, []string{h.key}, h.token))
}

func oneOrNotHeld(cmd *redis.Cmd) error {
	n, err := cmd.Int()
	if err != nil {
		return err
	}
	if n != 1 {
		return errNotHeld
	}
	return nil
}

// goRedisPipeline sends an acquire, a read and a release in one go and expects the replies in that order.
func goRedisPipeline(ctx context.Context, t *trial) error {
	client := newGoRedis(t.nodes[0])
	defer client.Close()
	name := t.name("pipeline")
	pipe := client.Pipeline()
	set := pipe.SetArgs(ctx, name, "me", redis.SetArgs{Mode: "NX", TTL: 10 * time.Second})
	get := pipe.Get(ctx, name)
	ttl := pipe.PTTL(ctx, name)
	del := pipe.Del(ctx, name)
	gone := pipe.Exists(ctx, name)
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	if set.Val() != "OK" || get.Val() != "me" || ttl.Val() < 9*time.Second || del.Val() != 1 || gone.Val() != 0 {
		return fmt.Errorf("replies %v %v %v %v %v", set, get, ttl, del, gone)
	}
	return nil
}

// goRedisTransaction releases with WATCH, GET, MULTI, DEL, EXEC: it must go through when nothing changed and
// must not when another client wrote in between.
func goRedisTransaction(ctx context.Context, t *trial) error {
	client, other := newGoRedis(t.nodes[0]), newGoRedis(t.nodes[0])
	defer client.Close()
	defer other.Close()
	name := t.name("watch")
	release := func(between func() error) error {
		return client.Watch(ctx, func(tx *redis.Tx) error {
			if _, err := tx.Get(ctx, name).Result(); err != nil {
				return err
			}
			if err := between(); err != nil {
				return err
			}
			_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Del(ctx, name)
				return nil
			})
			return err
		}, name)
	}
	if err := client.Set(ctx, name, "me", 10*time.Second).Err(); err != nil {
		return err
	}
	stolen := func() error { return other.Set(ctx, name, "thief", 10*time.Second).Err() }
	if err := release(stolen); !errors.Is(err, redis.TxFailedErr) {
		return fmt.Errorf("EXEC after another client's write gave %v, expected it refused", err)
	}
	if owner := other.Get(ctx, name).Val(); owner != "thief" {
		return fmt.Errorf("after the refused EXEC the key is %q", owner)
	}
	if err := release(func() error { return nil }); err != nil {
		return fmt.Errorf("EXEC with nothing changed: %w", err)
	}
	if n := other.Exists(ctx, name).Val(); n != 0 {
		return errors.New("the key is still there after EXEC")
	}
	return nil
}

// goRedisPubSub subscribes at one node and publishes at another.
func goRedisPubSub(ctx context.Context, t *trial) error {
	here, there := newGoRedis(t.nodes[0]), newGoRedis(t.nodes[1])
	defer here.Close()
	defer there.Close()
	channel := t.name("channel")
	sub := here.Subscribe(ctx, channel)
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		return err
	}
	if err := there.Publish(ctx, channel, "released").Err(); err != nil {
		return fmt.Errorf("PUBLISH: %w", err)
	}
	message, err := sub.ReceiveTimeout(ctx, 5*time.Second)
	if err != nil {
		return fmt.Errorf("nothing received: %w", err)
	}
	if m, ok := message.(*redis.Message); !ok || m.Payload != "released" {
		return fmt.Errorf("received %v", message)
	}
	return nil
}
